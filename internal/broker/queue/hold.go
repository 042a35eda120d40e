package queue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Hold publishes a hold for rollouts of this trainer, see schema.Hold. Workers
// drop it after Timing.Lease, so repeat it more often than that.
func (t *Trainer) Hold(h *schema.Hold) error {
	data, err := schema.Encode(h)
	if err == nil {
		err = t.broker.CheckSize("hold", len(data))
	}
	if err == nil {
		err = t.broker.BulkConn().Publish(subjects.TrainerHold(t.tid), data)
	}
	if err != nil {
		return fmt.Errorf("ask to hold: %w", broker.Reach(err))
	}
	return nil
}

// holds has the current hold of each trainer.
type holds struct {
	*base
	mu      sync.Mutex
	by      map[string]holding // by trainer
	changed chan struct{}      // closed and replaced when a hold changes
}

type holding struct {
	schema.Hold
	heard time.Time
}

func newHolds(b *base) *holds {
	return &holds{base: b, by: map[string]holding{}, changed: make(chan struct{})}
}

// take stores a trainer's hold, unless a newer one of the same process is known.
func (h *holds) take(trainer string, new schema.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.by[trainer]; old.Instance == new.Instance && old.Serial > new.Serial {
		return
	}
	h.by[trainer] = holding{new, time.Now()}
	close(h.changed)
	h.changed = make(chan struct{})
}

// learn stores a hold that was read from the stream, unless a newer one has
// arrived since.
func (h *holds) learn(trainer string, read schema.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, heard := h.by[trainer]; !heard {
		h.by[trainer] = holding{read, time.Now()}
	}
}

// onAsked stores a trainer's hold in the control bucket, from which all workers
// get it. One worker of the queue group gets each.
func (h *holds) onAsked(m *nats.Msg) {
	trainer, ok := subjects.ParseTrainerHold(m.Subject)
	var asked schema.Hold
	if !ok || wire.Decode(m.Data, &asked) != nil {
		h.log.Warn().Str("subject", m.Subject).Msg("a hold that cannot be read was dropped")
		return
	}
	if err := h.broker.BulkConn().Publish(subjects.Hold(trainer), m.Data); err != nil { // the trainer repeats
		h.log.Debug().Err(err).Str("trainer", trainer).Msg("a hold was not passed on")
	}
}

// onHold takes a hold from the control bucket.
func (h *holds) onHold(m *nats.Msg) {
	var held schema.Hold
	if err := schema.Decode(m.Data, &held); err != nil {
		h.log.Warn().Err(err).Str("subject", m.Subject).Msg("a hold that cannot be read was dropped")
		return
	}
	h.take(strings.TrimPrefix(m.Subject, subjects.Hold("")), held)
}

// held reports whether a rollout is held, see Job.HeldByTrainer.
func (h *holds) held(ctx context.Context, id schema.ID) (held bool, changed <-chan struct{}) {
	trainer := id.Trainer()
	h.mu.Lock()
	_, known := h.by[trainer]
	h.mu.Unlock()
	if !known {
		h.read(ctx, trainer)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.by[trainer]
	return time.Since(now.heard) < h.timing.Lease && now.Holds(id), h.changed
}

// count returns the number of trainers that hold all or some of their rollouts.
func (h *holds) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, x := range h.by {
		if time.Since(x.heard) < h.timing.Lease && (x.All || len(x.IDs) > 0) {
			n++
		}
	}
	return n
}

// read reads the hold of a trainer from the control bucket.
func (h *holds) read(ctx context.Context, trainer string) {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	m, err := h.broker.Messages.Last(op, subjects.StreamControl, subjects.Hold(trainer))
	var stored schema.Hold
	if err == nil && m != nil {
		err = schema.Decode(m.Data, &stored)
	}
	if err != nil {
		h.log.Debug().Err(err).Str("trainer", trainer).Msg("a hold could not be read; it is heard when it is repeated")
		return
	}
	h.learn(trainer, stored) // without a message: the empty hold
}

// HeldByTrainer reports whether the job's trainer holds it, and returns a channel that
// is closed when this may have changed. A hold that was not repeated within Timing.Lease
// has lapsed.
func (j *Job) HeldByTrainer(ctx context.Context) (held bool, changed <-chan struct{}) {
	return j.by.holds.held(ctx, j.Request.ID)
}
