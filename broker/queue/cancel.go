package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/broker/internal/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// cancelOne carries out one cancel. seq is the sequence of the rollout's message in
// its trainer's queue, as the trainer says; 0: not known.
func (w *Worker) cancelOne(ctx context.Context, id schema.ID, seq uint64, find *search) error {
	crash.Here("cancel.before")
	m := w.about(id, askCancel)
	m.message, m.find = seq, find
	s, err := w.resolve(ctx, m)
	if err != nil {
		return err
	}
	switch s {
	case writeMark:
		crash.Here("cancel.marked")
		return w.forwardCancel(m.record.Value)
	case stepForwardCancel:
		return w.forwardCancel(m.record.Value)
	}
	w.hint(id) // an earlier one may have been lost
	return w.unqueue(ctx, id, seq, m.record.Value.OwnerSeq, m.message)
}

// unqueue deletes the messages of a rollout in its trainer's queue, as far as they
// are parked or at these sequences.
func (w *Worker) unqueue(ctx context.Context, id schema.ID, seqs ...uint64) error {
	stream := subjects.Queue(id.Trainer())
	p, err := parked(ctx, w.Broker, id)
	if err != nil {
		return err
	}
	if p != nil {
		seqs = append(seqs, p.Sequence)
	}
	slices.Sort(seqs)
	for _, seq := range slices.Compact(seqs) {
		there, err := queuedIn(ctx, w.Broker, stream, id, seq)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		s, err := w.Stream(ctx, stream)
		if err != nil {
			return err
		}
		if err := s.DeleteMsg(ctx, seq); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			return fmt.Errorf("take message %d off the queue: %w", seq, err)
		}
	}
	return nil
}

// forwardCancel asks the owner of a rollout to cancel it.
func (w *Worker) forwardCancel(s schema.State) error {
	return w.tell(s.Worker, &schema.Control{V: schema.Version, Do: schema.ControlCancel, ID: s.ID, Attempt: s.Attempt})
}

// copyOf returns the kept copy of a claimed request, or a request with only the
// id and trainer if there is no copy.
func (w *Worker) copyOf(ctx context.Context, id schema.ID) *schema.Request {
	r, err := broker.ReadRecord[schema.Request](ctx, w.Broker, subjects.RequestCopy(id))
	if err != nil || r.Seq == 0 {
		return &schema.Request{ID: id, Trainer: id.Trainer()}
	}
	return &r.Value
}

// tell sends a command to a worker.
func (w *Worker) tell(worker string, c *schema.Control) error {
	data, err := schema.Encode(c)
	if err != nil {
		return err
	}
	if err := w.BulkConn().Publish(subjects.WorkerControl(worker), data); err != nil {
		return fmt.Errorf("tell worker %s: %w", worker, err)
	}
	return nil
}

// onControl handles commands from other workers.
func (w *Worker) onControl(m *nats.Msg) {
	var c schema.Control
	if err := schema.Decode(m.Data, &c); err != nil {
		w.log.Warn().Err(err).Msg("a command of another worker cannot be read")
		return
	}
	switch c.Do {
	case schema.ControlCancel:
		j := w.job(c.ID)
		if j == nil || !j.claimed.Load() || j.Attempt != c.Attempt {
			return // the rollout has ended, or an audit gives it back
		}
		j.end(ErrCancelled)
	case schema.ControlCopy:
		if j := w.job(c.ID); j != nil && j.claimed.Load() && j.Attempt == c.Attempt {
			if err := w.BulkConn().PublishMsg(requestCopy(c.ID, j.msg.Load())); err != nil { // the janitor asks again
				w.log.Debug().Err(err).Str("rollout", string(c.ID)).Msg("the copy of a request was not stored again")
			}
		}
	case schema.ControlGiveBack:
		select {
		case w.audits <- c.ID:
		default: // the janitor asks again
		}
	}
}

// serveAudits gives back rollouts that this instance owns by their state record
// but does not run.
func (w *Worker) serveAudits(ctx context.Context) {
	for {
		var id schema.ID
		select {
		case <-ctx.Done():
			return
		case id = <-w.audits:
		}
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		m := w.about(id, askAudit)
		did, err := w.resolve(op, m)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.log.Warn().Err(err).Str("rollout", string(id)).Msg("a rollout that is not here was not given back; the janitor asks again")
		}
		if err == nil && did.writes() && m.record.Value.Status.Terminal() {
			w.hint(id)
		}
	}
}
