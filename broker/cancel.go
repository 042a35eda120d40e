package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// onCancel acts on a trainer's wish to end rollouts. One worker of all hears
// each; the trainer repeats until the results are there.
func (w *WorkerSide) onCancel(m *nats.Msg) {
	trainer, ok := subjects.ParseTrainerCancel(m.Subject)
	var c schema.Cancel
	if !ok || schema.Decode(m.Data, &c) != nil {
		w.log.Warn().Str("subject", m.Subject).Msg("a cancel that cannot be read was dropped")
		return
	}
	select {
	case w.cancels <- wish{trainer, c}:
	default: // the trainer repeats
		w.log.Warn().Str("trainer", trainer).Msg("too many cancels at once; one was dropped")
	}
}

type wish struct {
	trainer string
	cancel  schema.Cancel
}

// serveCancels works through the wishes.
func (w *WorkerSide) serveCancels(ctx context.Context) {
	for {
		var c wish
		select {
		case <-ctx.Done():
			return
		case c = <-w.cancels:
		}
		for _, id := range c.cancel.IDs {
			if id.Trainer() != c.trainer {
				w.log.Warn().Str("trainer", c.trainer).Str("rollout", string(id)).Msg("a trainer asked to cancel another's rollout")
				continue
			}
			op, cancel := context.WithTimeout(ctx, opTimeout)
			err := w.cancelOne(op, id)
			cancel()
			if err != nil && ctx.Err() == nil {
				w.log.Warn().Err(err).Str("rollout", string(id)).Msg("a cancel was not carried out; it is asked again")
			}
		}
	}
}

func (w *WorkerSide) cancelOne(ctx context.Context, id schema.ID) error {
	for {
		state, seq, found, err := w.readState(ctx, id)
		if err != nil {
			return err
		}
		crash.Here("cancel.before")
		switch {
		case !found:
			state = schema.State{V: schema.Version, ID: id, Trainer: id.Trainer()}
			err = w.endCancelled(ctx, &schema.Request{ID: id, Trainer: id.Trainer()}, state, seq)
		case state.Status.Terminal():
			w.hint(id) // that hint may have been lost
			return nil
		case state.Status == schema.StatusQueued:
			err = w.endCancelled(ctx, w.copyOf(ctx, id), state, seq)
		case state.Status == schema.StatusRunning:
			next := state
			next.Status = schema.StatusCancelling
			if _, err = w.put(ctx, subjects.State(id), &next, seq); err == nil {
				crash.Here("cancel.marked")
				return w.nudge(state)
			}
		default: // cancelling
			return w.nudgeOrEnd(ctx, state, seq)
		}
		if !errors.Is(err, errMoved) {
			return err
		}
	}
}

// nudge tells the owner of a rollout to look at its state.
func (w *WorkerSide) nudge(s schema.State) error {
	return w.tell(s.Worker, &schema.Control{V: schema.Version, Do: schema.ControlCancel, ID: s.ID, Attempt: s.Attempt})
}

func (w *WorkerSide) nudgeOrEnd(ctx context.Context, state schema.State, seq uint64) error {
	if state.Worker == w.wid && state.Instance == w.instance && w.job(state.ID) == nil {
		return w.giveBack(ctx, state, seq)
	}
	standing, err := w.leaseOf(ctx, state.Worker, state.Instance)
	if err != nil {
		return err
	}
	if standing == leaseAlive {
		return w.nudge(state)
	}
	return w.endCancelled(ctx, w.copyOf(ctx, state.ID), state, seq)
}

// copyOf is the request as it was claimed, as far as it is known.
func (w *WorkerSide) copyOf(ctx context.Context, id schema.ID) *schema.Request {
	var q schema.Request
	if _, found, err := w.lastRollout(ctx, subjects.RequestCopy(id), &q); err != nil || !found {
		return &schema.Request{ID: id, Trainer: id.Trainer()}
	}
	return &q
}

// endCancelled commits the result of a rollout that nobody runs.
func (w *WorkerSide) endCancelled(ctx context.Context, req *schema.Request, state schema.State, seq uint64) error {
	err := w.conclude(ctx, state, seq, Cancelled(verdict(req, state.Attempt, schema.StatusCancelled, nil)))
	if err == nil {
		crash.Here("cancel.committed")
	}
	return err
}

// tell sends a word to a worker.
func (w *WorkerSide) tell(worker string, c *schema.Control) error {
	data, err := schema.Encode(c)
	if err != nil {
		return err
	}
	if err := w.bulk.Publish(subjects.WorkerControl(worker), data); err != nil {
		return fmt.Errorf("tell worker %s: %w", worker, err)
	}
	return nil
}

// onControl hears other workers.
func (w *WorkerSide) onControl(m *nats.Msg) {
	var c schema.Control
	if err := schema.Decode(m.Data, &c); err != nil {
		w.log.Warn().Err(err).Msg("a word from another worker cannot be read")
		return
	}
	switch c.Do {
	case schema.ControlCancel:
		j := w.job(c.ID)
		if j == nil || !j.claimed.Load() || j.Attempt != c.Attempt {
			return // over, or given back by the audit
		}
		j.end(ErrCancelled)
	case schema.ControlGiveBack:
		select {
		case w.audits <- c.ID:
		default: // the janitor asks again
		}
	case schema.ControlTake:
		answer := "-"
		if w.handover.take(&c) {
			answer = "+"
		}
		if err := m.Respond([]byte(answer)); err != nil {
			w.log.Debug().Err(err).Msg("another worker was not answered")
		}
	}
}

// serveAudits gives back rollouts whose state names this instance though it
// does not run them.
func (w *WorkerSide) serveAudits(ctx context.Context) {
	for {
		var id schema.ID
		select {
		case <-ctx.Done():
			return
		case id = <-w.audits:
		}
		if w.job(id) != nil {
			continue
		}
		op, cancel := context.WithTimeout(ctx, opTimeout)
		state, seq, found, err := w.readState(op, id)
		if err == nil && found && state.Owned() && state.Worker == w.wid && state.Instance == w.instance && w.job(id) == nil {
			err = w.giveBack(op, state, seq)
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			w.log.Warn().Err(err).Str("rollout", string(id)).Msg("a rollout that is not here was not given back; the janitor asks again")
		}
	}
}
