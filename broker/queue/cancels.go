package queue

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/broker/internal/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Bounds of the cancels that wait on one worker.
const (
	maxCancels      = 64       // of one trainer
	maxCancelBytes  = 16 << 20 // of one trainer
	maxCancelQueues = 1000     // trainers
)

// cancels has a queue of cancels for each trainer. Each queue with cancels has a
// goroutine, so that no trainer waits for another's cancels.
type cancels struct {
	mu      sync.Mutex
	waiting map[string]*cancelQueue // by trainer
	news    chan struct{}           // of capacity 1; has a value if a queue has no goroutine
}

type cancelQueue struct {
	served bool
	bodies [][]byte // of schema.Cancel
	bytes  int
}

func newCancels() *cancels {
	return &cancels{waiting: map[string]*cancelQueue{}, news: make(chan struct{}, 1)}
}

// put adds a cancel. It returns false if the trainer has too many.
func (c *cancels) put(trainer string, body []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.waiting[trainer]
	if q == nil {
		if len(c.waiting) >= maxCancelQueues {
			return false
		}
		q = &cancelQueue{}
		c.waiting[trainer] = q
	}
	if len(q.bodies) >= maxCancels || q.bytes > 0 && q.bytes+len(body) > maxCancelBytes {
		return false
	}
	q.bodies, q.bytes = append(q.bodies, body), q.bytes+len(body)
	if !q.served {
		select {
		case c.news <- struct{}{}:
		default:
		}
	}
	return true
}

// unserved returns the trainers with a queue without a goroutine, for which the
// caller starts one.
func (c *cancels) unserved() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for trainer, q := range c.waiting {
		if !q.served {
			q.served = true
			out = append(out, trainer)
		}
	}
	return out
}

// next takes the oldest cancel of a trainer. Without one it removes the queue, and
// the goroutine must end.
func (c *cancels) next(trainer string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.waiting[trainer]
	if len(q.bodies) == 0 {
		delete(c.waiting, trainer)
		return nil, false
	}
	body := q.bodies[0]
	q.bodies, q.bytes = q.bodies[1:], q.bytes-len(body)
	return body, true
}

// onCancel queues a trainer's cancel. One worker of the queue group gets each;
// the trainer repeats it until it has the results.
func (w *Worker) onCancel(m *nats.Msg) {
	trainer, ok := subjects.ParseTrainerCancel(m.Subject)
	if ok && !w.cancels.put(trainer, m.Data) { // the trainer repeats
		w.log.Debug().Str("trainer", trainer).Msg("too many cancels at once; one was dropped")
	}
}

// serveCancels carries out the queued cancels.
func (w *Worker) serveCancels(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		for _, trainer := range w.cancels.unserved() {
			all.Go(func() {
				for {
					body, ok := w.cancels.next(trainer)
					if !ok || ctx.Err() != nil {
						return
					}
					w.cancelAll(ctx, trainer, body)
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-w.cancels.news:
		}
	}
}

// cancelAll carries out one cancel.
func (w *Worker) cancelAll(ctx context.Context, trainer string, body []byte) {
	var c schema.Cancel
	if err := wire.Decode(body, &c); err != nil {
		w.log.Warn().Err(err).Str("trainer", trainer).Msg("a cancel that cannot be read was dropped")
		return
	}
	find := &search{w: w, trainer: trainer}
	for i, id := range c.IDs {
		seq := uint64(0)
		if len(c.Seqs) > 0 {
			seq = c.Seqs[i]
		}
		if id.Trainer() != trainer {
			w.log.Warn().Str("trainer", trainer).Str("rollout", string(id)).Msg("a trainer asked to cancel another's rollout")
			continue
		}
		op, cancel := context.WithTimeout(ctx, 2*wire.OpTimeout)
		err := w.cancelOne(op, id, seq, find)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.log.Warn().Err(err).Str("rollout", string(id)).Msg("a cancel was not carried out; it is asked again")
		}
	}
}

// maxSearched bounds the messages that are read for one cancel to find requests
// without a sequence.
const maxSearched = 2000

// search finds requests in a trainer's queue. It reads the oldest messages at most
// once.
type search struct {
	w       *Worker
	trainer string
	seqs    map[schema.ID]uint64 // nil: not read yet
}

// request looks for a request: at a sequence, then among the parked ones, then
// among the oldest. It returns nil if it did not find it.
func (s *search) request(ctx context.Context, id schema.ID, seq uint64) (*schema.Request, uint64) {
	if q := s.at(ctx, id, seq); q != nil {
		return q, seq
	}
	if m, err := parked(ctx, s.w.Broker, id); err == nil && m != nil {
		if q := s.at(ctx, id, m.Sequence); q != nil {
			return q, m.Sequence
		}
	}
	if s.seqs == nil {
		s.read(ctx)
	}
	seq = s.seqs[id]
	if q := s.at(ctx, id, seq); q != nil {
		return q, seq
	}
	return nil, 0
}

// at returns the request of a rollout at a sequence; nil if it is not there.
func (s *search) at(ctx context.Context, id schema.ID, seq uint64) *schema.Request {
	if seq == 0 {
		return nil
	}
	m, err := s.w.Message(ctx, subjects.Queue(s.trainer), seq)
	var q schema.Request
	if err != nil || m == nil || requestID(m.Data) != id || schema.Decode(m.Data, &q) != nil || q.ID != id || q.Trainer != s.trainer {
		return nil
	}
	return &q
}

// read lists the requests in the oldest messages. After an error it has the part
// that was read.
func (s *search) read(ctx context.Context) {
	s.seqs = map[schema.ID]uint64{}
	queue, err := s.w.Stream(ctx, subjects.Queue(s.trainer))
	seq := uint64(0)
	for n := 0; err == nil && n < maxSearched; n++ {
		var m *jetstream.RawStreamMsg
		if m, err = queue.GetMsg(ctx, seq+1, jetstream.WithGetMsgSubject(subjects.Requests+".*."+s.trainer)); err != nil {
			return
		}
		seq = m.Sequence
		if id := requestID(m.Data); s.seqs[id] == 0 {
			s.seqs[id] = seq
		}
	}
}
