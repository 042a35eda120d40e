package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// roster keeps this worker's list of trainers and makes the streams of trainers
// that ask. The worker takes requests from the queues of these trainers.
type roster struct {
	*base
	lanes  *lanes
	look   chan struct{} // of capacity 1; has a value if the list must be read now
	broken chan string   // trainers with a queue that could not be read; empty: the plain lane
	asked  chan string   // subjects on which trainers ask for their streams, each once
	adding sync.Mutex    // locked while a class is made

	mu       sync.Mutex
	asking   map[string][]string // reply subjects of the requests on the subjects in asked
	opened   map[string]*opening
	pools    map[string]*pool
	stale    map[string]bool // trainers with streams that were made or changed
	reported map[string]bool // trainers in broken, or that are being mended
	read     int             // rounds since the pools of all trainers were read
}

// pool has the queues of one trainer.
type pool struct {
	weight  int
	records int64 // bytes of its records; 0: unknown
	most    int64 // bound of records; 0: none
	classes map[class]schema.Needs
}

// full reports whether the trainer's records have more bytes than their bound.
func (p *pool) full() bool { return p.most > 0 && p.records > p.most }

// with returns the pool with the classes that now has and before has not: they were
// made while this pool was read.
func (p *pool) with(now, before *pool) *pool {
	if now == nil || now == before {
		return p
	}
	merged := *p
	merged.classes = maps.Clone(p.classes)
	for c, needs := range now.classes {
		if before == nil {
			merged.classes[c] = needs
		} else if _, old := before.classes[c]; !old {
			merged.classes[c] = needs
		}
	}
	return &merged
}

// opening is the last time that this worker opened a trainer's streams.
type opening struct {
	busy     chan struct{} // of capacity 1; has a value meanwhile
	at       time.Time
	settings broker.TrainerSettings
}

const (
	// openedFor is the time for which an answer about a trainer's streams is
	// repeated without asking the server. So a trainer that asks all the time
	// costs little.
	openedFor = 250 * time.Millisecond
	// readAll is the number of rounds after which the pools of all trainers are
	// read again, since the message that tells of a change may be lost.
	readAll = 6
	// openWithin bounds the requests that make a trainer's streams. Some of them may
	// get no answer and are repeated.
	openWithin = 6 * wire.OpTimeout
	// openAtOnce is the number of trainers that are answered at the same time.
	openAtOnce = 8
	// maxAsking is the number of requests of a trainer that are answered at once. A
	// trainer without an answer asks again.
	maxAsking = 64
)

func newRoster(b *base, l *lanes) *roster {
	return &roster{
		base: b, lanes: l, look: make(chan struct{}, 1), broken: make(chan string, 64), asked: make(chan string, 256), asking: map[string][]string{},
		opened: map[string]*opening{}, pools: map[string]*pool{}, stale: map[string]bool{}, reported: map[string]bool{},
	}
}

// run keeps the list until the context ends.
func (r *roster) run(ctx context.Context) {
	tick := time.NewTicker(r.timing.Renew)
	defer tick.Stop()
	for {
		if err := r.round(ctx); err != nil && ctx.Err() == nil {
			r.log.Debug().Err(err).Msg("the trainers were not listed")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.look:
		case tid := <-r.broken:
			r.mend(ctx, tid)
		}
	}
}

// soon lets run read the list without waiting.
func (r *roster) soon() {
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// round reads the list of trainers, and the pools of new and changed trainers.
func (r *roster) round(ctx context.Context) error {
	all, err := r.broker.Trainers.List(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	known, stale := maps.Clone(r.pools), r.stale
	r.stale = map[string]bool{}
	r.read++
	again := r.read >= readAll
	if again {
		r.read = 0
	}
	r.mu.Unlock()
	pools := make(map[string]*pool, len(all))
	var failed error
	for _, tid := range all {
		p := known[tid]
		if p == nil || again || stale[tid] {
			now, err := r.pool(ctx, tid)
			if err != nil { // the others are served all the same
				failed = errors.Join(failed, err)
				r.mu.Lock()
				r.stale[tid] = true
				r.mu.Unlock()
			} else {
				p = now
			}
		}
		if p != nil {
			pools[tid] = p
		}
	}
	r.mu.Lock()
	for tid, p := range pools {
		pools[tid] = p.with(r.pools[tid], known[tid])
	}
	r.pools = maps.Clone(pools) // learn changes it
	r.mu.Unlock()
	for tid, p := range pools {
		r.logFull(tid, known[tid], p)
	}
	r.lanes.set(r.served(pools))
	return failed
}

// served lists the queues with requests that this worker can run now.
func (r *roster) served(pools map[string]*pool) map[string]served {
	offer := r.offer()
	out := make(map[string]served, len(pools))
	for tid, p := range pools {
		if p.full() {
			continue
		}
		s := served{weight: p.weight}
		for c, needs := range p.classes {
			if c.name == subjects.ClassDelay || r.cfg.Offer == nil || offer.Meets(&needs) == nil {
				s.classes = append(s.classes, c)
			}
		}
		slices.SortFunc(s.classes, func(a, b class) int { return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.name, b.name)) })
		out[tid] = s
	}
	return out
}

// pool reads the queues of a trainer; nil: it has none any more.
func (r *roster) pool(ctx context.Context, tid string) (*pool, error) {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	s, err := r.broker.JetStream().Stream(op, subjects.Queue(tid))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", subjects.Queue(tid), broker.Reach(err))
	}
	p := &pool{weight: broker.WeightOf(s.CachedInfo().Config), most: broker.RecordBound(s.CachedInfo().Config), classes: map[class]schema.Needs{}}
	if p.most > 0 {
		p.records, err = r.broker.Trainers.RecordBytes(op, tid)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, fmt.Errorf("look at the records of trainer %s: %w", tid, broker.Reach(err))
		}
	}
	all, _, err := r.classes(op, s)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		p.classes[c.class] = c.needs
	}
	return p, nil
}

// logFull logs that a trainer's records have come above or below their bound.
// before is nil for a new trainer.
func (r *roster) logFull(tid string, before, now *pool) {
	was := before != nil && before.full()
	switch {
	case now.full() && !was:
		r.log.Warn().Str("trainer", tid).Int64("bytes", now.records).Int64("max_record_bytes", now.most).Msg("the records of a trainer have reached their bound: its requests stay in the queue")
	case was && !now.full():
		r.log.Info().Str("trainer", tid).Int64("bytes", now.records).Int64("max_record_bytes", now.most).Msg("the records of a trainer are below their bound again: its requests are taken")
	}
}

// onTrainers learns that a trainer's streams or consumers were made or changed.
func (r *roster) onTrainers(m *nats.Msg) {
	r.mu.Lock()
	r.stale[string(m.Data)] = true
	delete(r.opened, string(m.Data))
	r.mu.Unlock()
	r.soon()
}

// onOpen queues a trainer's request for its streams. One worker of the queue group
// gets each; the trainer repeats it until it has an answer. All requests of a trainer
// take one place in the queue, so that a trainer with streams that do not answer
// delays no other.
func (r *roster) onOpen(m *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if waiting, ok := r.asking[m.Subject]; ok {
		if len(waiting) == maxAsking { // it waits for this one no more
			waiting = waiting[1:]
		}
		r.asking[m.Subject] = append(waiting, m.Reply)
		return
	}
	select {
	case r.asked <- m.Subject:
		r.asking[m.Subject] = []string{m.Reply}
	default:
		r.log.Warn().Str("subject", m.Subject).Msg("too many trainers ask for their streams at once; one was not answered")
	}
}

// serve answers the trainers that ask for their streams.
func (r *roster) serve(ctx context.Context) {
	var all sync.WaitGroup
	for range openAtOnce {
		all.Go(func() { r.answer(ctx) })
	}
	all.Wait()
}

// answer answers one trainer after the other.
func (r *roster) answer(ctx context.Context) {
	for {
		var subject string
		select {
		case <-ctx.Done():
			return
		case subject = <-r.asked:
		}
		o := schema.Opened{V: schema.Version}
		tid, ok := subjects.ParseTrainerOpen(subject)
		if !ok {
			o.Error = fmt.Sprintf("%q names no trainer: want trainer.<name>.open, with a name of 1 to 20 characters of a-z, 0-9, _", subject)
		} else if s, err := r.open(ctx, tid); err != nil {
			r.log.Warn().Err(err).Str("trainer", tid).Msg("the streams of a trainer were not opened")
			o.Error = schema.Clip(err.Error(), 1000)
		} else {
			o.MaxQueue, o.MaxQueueBytes, o.MaxBundleBytes, o.MaxArtifactBytes, o.Weight = s.MaxQueue, s.MaxQueueBytes, s.MaxBundleBytes, s.MaxArtifactBytes, s.Weight
		}
		r.mu.Lock()
		replies := r.asking[subject]
		delete(r.asking, subject)
		r.mu.Unlock()
		data, err := schema.Encode(&o)
		for _, reply := range replies {
			err = errors.Join(err, r.broker.BulkConn().Publish(reply, data))
		}
		if err != nil {
			r.log.Debug().Err(err).Str("subject", subject).Msg("a trainer was not answered")
		}
	}
}

// open makes the missing streams of a trainer. Calls for one trainer at the same
// time ask the server once.
func (r *roster) open(ctx context.Context, tid string) (broker.TrainerSettings, error) {
	r.mu.Lock()
	o := r.opened[tid]
	if o == nil {
		o = &opening{busy: make(chan struct{}, 1)}
		r.opened[tid] = o
	}
	r.mu.Unlock()
	select {
	case o.busy <- struct{}{}:
		defer func() { <-o.busy }()
	case <-ctx.Done():
		return broker.TrainerSettings{}, fmt.Errorf("wait for the streams of trainer %s: %w", tid, context.Cause(ctx))
	}
	if time.Since(o.at) < openedFor {
		return o.settings, nil
	}
	op, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	settings, err := r.broker.Trainers.OpenWith(op, tid, r.timing)
	if err != nil {
		return settings, err
	}
	o.at, o.settings = time.Now(), settings
	return settings, nil
}

// reopen makes a trainer's missing streams again, which this worker needs for a
// rollout.
func (r *roster) reopen(ctx context.Context, tid string) error {
	_, err := r.open(ctx, tid)
	return err
}

// isBroken reports a queue that could not be read, to be mended soon.
func (r *roster) isBroken(tid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reported[tid] {
		return
	}
	select {
	case r.broken <- tid:
		r.reported[tid] = true
	default: // it is reported again
	}
}

// mend handles a queue that could not be read: its trainer was removed, or a
// stream or consumer is missing.
func (r *roster) mend(ctx context.Context, tid string) {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.reported, tid)
	}()
	var err error
	if tid == "" {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		err = r.broker.Streams.Restore(op, r.timing)
	} else {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout) // the list of trainers waits meanwhile
		defer cancel()
		var p *pool
		if p, err = r.pool(op, tid); err == nil && p != nil {
			err = r.reopen(op, tid)
		}
		r.mu.Lock()
		r.stale[tid] = true // a class may be gone
		r.mu.Unlock()
	}
	if err != nil && ctx.Err() == nil {
		r.log.Debug().Err(err).Str("trainer", tid).Msg("a queue that cannot be read was not mended")
	}
}
