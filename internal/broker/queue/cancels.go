package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
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
	*base
	resolver *resolver

	mu      sync.Mutex
	waiting map[string]*cancelQueue // by trainer
	news    chan struct{}           // of capacity 1; has a value if a queue has no goroutine
}

type cancelQueue struct {
	served bool
	bodies [][]byte // of schema.Cancel
	bytes  int
}

func newCancels(v *resolver) *cancels {
	return &cancels{base: v.base, resolver: v, waiting: map[string]*cancelQueue{}, news: make(chan struct{}, 1)}
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

// onAsked queues a trainer's cancel. One worker of the queue group gets each;
// the trainer repeats it until it has the results.
func (c *cancels) onAsked(m *nats.Msg) {
	trainer, ok := subjects.ParseTrainerCancel(m.Subject)
	if ok && !c.put(trainer, m.Data) { // the trainer repeats
		c.log.Debug().Str("trainer", trainer).Msg("too many cancels at once; one was dropped")
	}
}

// serve carries out the queued cancels.
func (c *cancels) serve(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		for _, trainer := range c.unserved() {
			all.Go(func() {
				for {
					body, ok := c.next(trainer)
					if !ok || ctx.Err() != nil {
						return
					}
					c.cancel(ctx, trainer, body)
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-c.news:
		}
	}
}

// cancel carries out one cancel, which may name many rollouts.
func (c *cancels) cancel(ctx context.Context, trainer string, body []byte) {
	var asked schema.Cancel
	if err := wire.Decode(body, &asked); err != nil {
		c.log.Warn().Err(err).Str("trainer", trainer).Msg("a cancel that cannot be read was dropped")
		return
	}
	find := &search{base: c.base, trainer: trainer}
	for i, id := range asked.IDs {
		seq := uint64(0)
		if len(asked.Seqs) > 0 {
			seq = asked.Seqs[i]
		}
		if id.Trainer() != trainer {
			c.log.Warn().Str("trainer", trainer).Str("rollout", string(id)).Msg("a trainer asked to cancel another's rollout")
			continue
		}
		op, cancel := context.WithTimeout(ctx, 2*wire.OpTimeout)
		err := c.one(op, id, seq, cancelFault(asked.Reason), find)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.log.Warn().Err(err).Str("rollout", string(id)).Msg("a cancel was not carried out; it is asked again")
		}
	}
}

// one cancels one rollout. seq is the sequence of the rollout's message in
// its trainer's queue, as the trainer says; 0: not known.
func (c *cancels) one(ctx context.Context, id schema.ID, seq uint64, fault *schema.Fault, find *search) error {
	crash.Here("cancel.before")
	m := c.resolver.about(id, askCancel)
	m.message, m.fault, m.find = seq, fault, find
	s, err := c.resolver.resolve(ctx, m)
	if err != nil {
		return err
	}
	switch s {
	case writeMark:
		crash.Here("cancel.marked")
		return c.forward(m.record.Value)
	case stepForwardCancel:
		return c.forward(m.record.Value)
	}
	c.hint(id) // an earlier one may have been lost
	return unqueue(ctx, c.broker, id, seq, m.record.Value.OwnerSeq, m.message)
}

// forward asks the owner of a rollout to cancel it.
func (c *cancels) forward(s schema.State) error {
	return c.command(s.Worker, &schema.Control{V: schema.Version, Do: schema.ControlCancel, ID: s.ID, Attempt: s.Attempt})
}

// unqueue deletes the messages of a rollout in its trainer's queue, as far as they
// are parked or at these sequences.
func unqueue(ctx context.Context, b *broker.Broker, id schema.ID, seqs ...uint64) error {
	stream := subjects.Queue(id.Trainer())
	p, err := parked(ctx, b.Messages, id)
	if err != nil {
		return err
	}
	if p != nil {
		seqs = append(seqs, p.Sequence)
	}
	slices.Sort(seqs)
	for _, seq := range slices.Compact(seqs) {
		there, err := queuedIn(ctx, b.Messages, stream, id, seq)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		s, err := b.Streams.Open(ctx, stream)
		if err != nil {
			return err
		}
		if err := s.DeleteMsg(ctx, seq); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			return fmt.Errorf("take message %d off the queue: %w", seq, err)
		}
	}
	return nil
}

// maxSearched bounds the messages that are read for one cancel to find requests
// without a sequence.
const maxSearched = 2000

// search finds requests in a trainer's queue. It reads the oldest messages at most
// once.
type search struct {
	*base
	trainer string
	seqs    map[schema.ID]uint64 // nil: not read yet
}

// request looks for a request: at a sequence, then among the parked ones, then
// among the oldest. It returns nil if it did not find it.
func (s *search) request(ctx context.Context, id schema.ID, seq uint64) (*schema.Request, *delivery) {
	if q, d := s.at(ctx, id, seq); q != nil {
		return q, d
	}
	if m, err := parked(ctx, s.broker.Messages, id); err == nil && m != nil {
		if q, d := s.at(ctx, id, m.Sequence); q != nil {
			return q, d
		}
	}
	if s.seqs == nil {
		s.read(ctx)
	}
	return s.at(ctx, id, s.seqs[id])
}

// at returns the request of a rollout at a sequence; nil if it is not there.
func (s *search) at(ctx context.Context, id schema.ID, seq uint64) (*schema.Request, *delivery) {
	if seq == 0 {
		return nil, nil
	}
	m, err := s.broker.Messages.At(ctx, subjects.Queue(s.trainer), seq)
	var q schema.Request
	if err != nil || m == nil || requestID(m.Data) != id || schema.Decode(m.Data, &q) != nil || q.ID != id || q.Trainer != s.trainer {
		return nil, nil
	}
	return &q, undelivered(m)
}

// read lists the requests in the oldest messages. After an error it has the part
// that was read.
func (s *search) read(ctx context.Context) {
	s.seqs = map[schema.ID]uint64{}
	queue, err := s.broker.Streams.Open(ctx, subjects.Queue(s.trainer))
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
