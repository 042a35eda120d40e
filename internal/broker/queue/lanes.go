package queue

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/subjects"
)

// lanes selects the queue from which the next request is taken. Urgent lanes come
// first more often, and no lane starves. Inside a lane trainers take turns by their
// weights; the number of their queued requests has no influence.
//
// Both levels use start-time fair queueing: each lane and each queue in it has a
// tag that grows by 1/weight with each request, and the smallest tag comes next.
// The tag of a lane or queue that was empty is raised to the tag of the last one
// that gave a request, so that it gets no share for its empty time.
type lanes struct {
	mu      sync.Mutex
	all     [subjects.Lanes]lane
	now     float64           // tag of the last lane that gave a request
	asked   uint64            // number of requests that were asked for
	served  map[string]served // by trainer
	changed chan struct{}     // closed and replaced when queues are added or removed
}

// served are the queues of one trainer that this worker takes requests from: the
// lanes and some classes of parked requests.
type served struct {
	weight  int
	classes []class
}

// class is a class of parked requests in a lane.
type class struct {
	lane int
	name string
}

// share is the share of one trainer in a lane.
type share struct{ weight, tag float64 }

type lane struct {
	weight float64
	tag    float64
	now    float64 // tag of the last queue that gave a request
	queues []*queue
}

// queue is one lane of one trainer, or one class of its parked requests in that
// lane: a consumer of the trainer's queue.
type queue struct {
	trainer  string // empty: the plain lane
	lane     int
	stream   string
	consumer string
	share    *share    // of all queues of the trainer in the lane, which take turns
	turn     uint64    // lanes.asked when it was asked last
	empty    time.Time // time when it was last found empty
	skip     time.Time // the queue is not asked before this time
	gone     bool      // the last read failed
	silent   int       // number of reads in a row without an answer
}

// The weights of p0 to p3. A full lane p0 leaves every fifteenth request to a
// full lane p3.
var laneWeights = [subjects.Lanes]float64{8, 4, 2, 1} //nolint:gochecknoglobals // a constant table

const (
	// emptyFor is the time for which a queue that was just empty is not polled. A
	// wait on all queues includes it.
	emptyFor = 100 * time.Millisecond
	// goneFor is the time for which a queue that could not be read is left out.
	goneFor = time.Second
	// silentFor is the time for which a queue that did not answer is not polled. It
	// doubles with each time in a row, up to silentMost. A wait on all queues
	// includes it.
	silentFor  = 5 * time.Second
	silentMost = 5 * time.Minute
)

func newLanes() *lanes {
	l := &lanes{changed: make(chan struct{}), served: map[string]served{}}
	for i := range l.all {
		l.all[i].weight = laneWeights[i]
	}
	plain := &l.all[subjects.DefaultLane]
	plain.queues = append(plain.queues, &queue{lane: subjects.DefaultLane, stream: subjects.StreamPlain, consumer: subjects.ConsumerPlain, share: &share{weight: 1}})
	return l
}

// set changes the list of trainers with queues.
func (l *lanes) set(all map[string]served) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if maps.EqualFunc(l.served, all, func(a, b served) bool { return a.weight == b.weight && slices.Equal(a.classes, b.classes) }) {
		return
	}
	for i := range l.all {
		in := &l.all[i]
		known, shares := map[string]*queue{}, map[string]*share{}
		for _, q := range in.queues {
			known[q.stream+" "+q.consumer], shares[q.trainer] = q, q.share
		}
		in.queues = slices.DeleteFunc(in.queues, func(q *queue) bool { return q.trainer != "" })
		for _, tid := range slices.Sorted(maps.Keys(all)) {
			s := cmp.Or(shares[tid], &share{})
			s.weight = float64(all[tid].weight)
			for _, consumer := range all[tid].consumers(i) {
				stream := subjects.Queue(tid)
				q := cmp.Or(known[stream+" "+consumer], &queue{trainer: tid, lane: i, stream: stream, consumer: consumer})
				q.share = s
				in.queues = append(in.queues, q)
			}
		}
	}
	l.served = all
	close(l.changed)
	l.changed = make(chan struct{})
}

// consumers lists the consumers of a trainer in a lane.
func (s served) consumers(lane int) []string {
	out := []string{subjects.ConsumerOf(lane)}
	for _, c := range s.classes {
		if c.lane == lane {
			out = append(out, subjects.ConsumerOfClass(lane, c.name))
		}
	}
	return out
}

// every lists all queues that can be read, and returns a channel that is closed
// when the list changes.
func (l *lanes) every() (all []*queue, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i := range l.all {
		for _, q := range l.all[i].queues {
			if !q.gone || now.After(q.skip) {
				all = append(all, q)
			}
		}
	}
	return all, l.changed
}

// next returns the queue to ask now and counts a request of it; nil: all were
// found empty since begun, or just before. Call gave or gaveNone afterwards.
func (l *lanes) next(begun time.Time) *queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var best *queue
	var bestTag float64
	for i := range l.all {
		in := &l.all[i]
		tag := max(in.tag, l.now)
		if best != nil && tag >= bestTag { // equal tags: the more urgent lane
			continue
		}
		if q := in.next(now, begun); q != nil {
			best, bestTag = q, tag
		}
	}
	if best != nil {
		l.count(best)
	}
	return best
}

// turn is a queue to ask for n requests.
type turn struct {
	*queue
	n int
}

// turns is next for n requests.
func (l *lanes) turns(begun time.Time, n int) []turn {
	var out []turn
	for range n {
		q := l.next(begun)
		if q == nil {
			break
		}
		if i := slices.IndexFunc(out, func(t turn) bool { return t.queue == q }); i >= 0 {
			out[i].n++
		} else {
			out = append(out, turn{q, 1})
		}
	}
	return out
}

// takeBack takes back counted requests that were not asked for.
func (l *lanes) takeBack(all []turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range all {
		l.discount(t.queue, t.n)
	}
}

func (l *lanes) discount(q *queue, n int) {
	q.share.tag -= float64(n) / q.share.weight
	l.all[q.lane].tag -= float64(n) / l.all[q.lane].weight
}

// count counts a request of a queue. Counting it when it is asked for, not when it
// arrives, keeps the turns also when many slots ask at once.
func (l *lanes) count(q *queue) {
	in := &l.all[q.lane]
	l.now = max(l.now, in.tag)
	in.tag = l.now + 1/in.weight
	in.now = max(in.now, q.share.tag)
	q.share.tag = in.now + 1/q.share.weight
	l.asked++
	q.turn = l.asked
}

func (in *lane) next(now, begun time.Time) *queue {
	var best *queue
	for _, q := range in.queues {
		if now.Before(q.skip) || q.empty.After(begun) {
			continue
		}
		switch {
		case best == nil, q.share != best.share && max(q.share.tag, in.now) < max(best.share.tag, in.now):
			best = q
		case q.share == best.share && q.turn < best.turn:
			best = q
		}
	}
	return best
}

// gave notes that a queue gave a request.
func (l *lanes) gave(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q.skip, q.gone, q.silent = time.Time{}, false, 0
}

// gaveUnasked is gave for a request that next was not called for.
func (l *lanes) gaveUnasked(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(q)
	q.skip, q.gone, q.silent = time.Time{}, false, 0
}

// gaveNothing notes that a queue did not answer a poll.
func (l *lanes) gaveNothing(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveOut(q, false)
	q.skip = q.empty.Add(min(silentFor<<min(q.silent, 10), silentMost))
	q.silent++
}

// gaveNone takes back the request that next counted. gone: the queue could not be
// read.
func (l *lanes) gaveNone(q *queue, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discount(q, 1)
	l.leaveOut(q, gone)
}

// isGone notes that a queue could not be read.
func (l *lanes) isGone(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveOut(q, true)
}

func (l *lanes) leaveOut(q *queue, gone bool) {
	q.empty, q.gone = time.Now(), gone
	if q.skip = q.empty.Add(emptyFor); gone {
		q.skip = q.empty.Add(goneFor)
	}
}
