package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Hold tells workers which of this trainer's rollouts wait before they ask an
// engine themselves. It is a hint: repeat it, more often than a lease lasts,
// for as long as it is to count.
func (t *TrainerSide) Hold(h *schema.Hold) error {
	data, err := schema.Encode(h)
	if err == nil {
		err = checkSize(t.bulk, "hold", len(data))
	}
	if err == nil {
		err = t.bulk.Publish(subjects.TrainerHold(t.tid), data)
	}
	if err != nil {
		return fmt.Errorf("ask to hold: %w", reach(err))
	}
	return nil
}

// holds are the holds of trainers, as a worker knows them.
type holds struct {
	mu      sync.Mutex
	by      map[string]holding // by trainer
	changed chan struct{}      // closed and replaced when one changes
}

type holding struct {
	schema.Hold
	heard time.Time
}

func newHolds() holds { return holds{by: map[string]holding{}, changed: make(chan struct{})} }

// take notes a trainer's hold, unless a newer one of the same process is known.
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

// learn notes what was read of a trainer, unless it was heard meanwhile.
func (h *holds) learn(trainer string, read schema.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, heard := h.by[trainer]; !heard {
		h.by[trainer] = holding{read, time.Now()}
	}
}

// onHold keeps a trainer's wish where all workers see it. One worker of all
// hears each.
func (w *WorkerSide) onHold(m *nats.Msg) {
	trainer, ok := subjects.ParseTrainerHold(m.Subject)
	var h schema.Hold
	if !ok || schema.Decode(m.Data, &h) != nil {
		w.log.Warn().Str("subject", m.Subject).Msg("a hold that cannot be read was dropped")
		return
	}
	if err := w.bulk.Publish(subjects.Hold(trainer), m.Data); err != nil { // the trainer repeats
		w.log.Debug().Err(err).Str("trainer", trainer).Msg("a hold was not passed on")
	}
}

// onHeld hears what is kept of holds.
func (w *WorkerSide) onHeld(m *nats.Msg) {
	var h schema.Hold
	if err := schema.Decode(m.Data, &h); err != nil {
		w.log.Warn().Err(err).Str("subject", m.Subject).Msg("a hold that cannot be read was dropped")
		return
	}
	w.holds.take(strings.TrimPrefix(m.Subject, subjects.Hold("")), h)
}

// Held reports whether a rollout's trainer holds it, and gives a channel that
// is closed when that may have changed. A hold that was not repeated for as
// long as a lease lasts does not count any more.
func (w *WorkerSide) Held(ctx context.Context, id schema.ID) (held bool, changed <-chan struct{}) {
	trainer := id.Trainer()
	w.holds.mu.Lock()
	_, known := w.holds.by[trainer]
	w.holds.mu.Unlock()
	if !known {
		w.learnHold(ctx, trainer)
	}
	w.holds.mu.Lock()
	defer w.holds.mu.Unlock()
	h := w.holds.by[trainer]
	return time.Since(h.heard) < w.timing.Lease && h.Holds(id), w.holds.changed
}

// learnHold reads the hold of a trainer that this worker has not heard of.
func (w *WorkerSide) learnHold(ctx context.Context, trainer string) {
	op, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	m, err := w.last(op, subjects.StreamControl, subjects.Hold(trainer))
	var h schema.Hold
	if err == nil && m != nil {
		err = schema.Decode(m.Data, &h)
	}
	if err != nil {
		w.log.Debug().Err(err).Str("trainer", trainer).Msg("a hold could not be read; it is heard when it is repeated")
		return
	}
	w.holds.learn(trainer, h) // or that there is none
}

// HeldByTrainer reports whether the job's trainer holds it, see WorkerSide.Held.
func (j *Job) HeldByTrainer(ctx context.Context) (held bool, changed <-chan struct{}) {
	return j.w.Held(ctx, j.Request.ID)
}
