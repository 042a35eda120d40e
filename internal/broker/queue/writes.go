package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// writes writes the records of rollouts, each on the condition that the state is
// unchanged.
type writes struct{ *base }

// claim writes a state that names this worker, and a copy of the request, to
// replace a lost queue message. Both go over the same connection to the same
// stream, so the copy is stored first. They are not one batch, since for each
// batch a server with one replica opens a file store.
func (w *writes) claim(ctx context.Context, m *resolution, next *schema.State) (uint64, error) {
	state, err := broker.Expecting(subjects.State(m.id), next, m.record.Seq)
	if err != nil {
		return 0, err
	}
	crash.Here("claim.before")
	copied, err := w.broker.JetStream().PublishMsgAsync(requestCopy(m.id, m.d), jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, fmt.Errorf("keep a copy of the request of %s: %w", m.id, broker.Reach(err))
	}
	m.attempt = next.Attempt
	// The write ignores the end of ctx. Otherwise unclaim could read the state before
	// the server stores it.
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
	defer cancel()
	seq, err := w.broker.Messages.PutMsg(op, state)
	if err != nil {
		return 0, err
	}
	crash.Here("claim.stored")
	timeout := time.NewTimer(wire.OpTimeout)
	defer timeout.Stop()
	select {
	case <-copied.Ok():
		m.copied = true
	case err := <-copied.Err(): // decide asks to store it again
		w.log.Debug().Err(err).Str("rollout", string(m.id)).Msg("the copy of a request was not stored")
	case <-timeout.C:
	case <-ctx.Done():
	}
	return seq, nil
}

// requestCopy is the message of the copy of a request.
func requestCopy(id schema.ID, d *delivery) *nats.Msg {
	return d.copied(subjects.RequestCopy(id), nats.Header{subjects.HeaderSubject: {d.subject}})
}

// copy writes the copy of a claimed request. Without the copy no worker could
// run the rollout after the loss of the queue.
func (w *writes) copy(ctx context.Context, m *resolution) error {
	crash.Here("copy.before")
	_, err := broker.Insist(ctx, &w.log, "keep a copy of the request of "+string(m.id), func(ctx context.Context) (uint64, error) {
		return w.broker.Messages.PutMsg(ctx, requestCopy(m.id, m.d))
	})
	if err != nil {
		return err
	}
	m.copied = true
	crash.Here("copy.stored")
	return nil
}

// keep writes the copy of a request that ends before any worker claimed it, so that it can
// be submitted again. A rollout ends without it, too: the records of a trainer may be full.
func (w *writes) keep(ctx context.Context, m *resolution) {
	if m.record.Seq != 0 || m.d == nil {
		return
	}
	if _, err := w.broker.Messages.PutMsg(ctx, requestCopy(m.id, m.d)); err != nil {
		w.log.Warn().Err(err).Str("rollout", string(m.id)).Msg("no copy of the request was kept; it cannot be submitted again")
	}
}

// commit writes the result of a job, on the condition that the state is
// unchanged, and then the terminal state on the same condition. If the second
// write is refused, the result still counts: the writer of the new state finds it and
// finishes with it.
func (w *writes) commit(ctx context.Context, m *resolution, d *decision) (uint64, error) {
	r := m.result
	switch d.status {
	case schema.StatusCancelled:
		r = cancelled(r, m.cancelFault())
	case schema.StatusDead:
		r.Status = schema.StatusDead
	default:
	}
	r, err := w.fitted(r)
	if err != nil {
		return 0, err
	}
	crash.Here("commit.before")
	d.next = concluded(d.next, &r)
	result, state, err := commitMessages(d.next, m.record.Seq, r)
	if err != nil {
		return 0, err
	}
	if _, err := w.broker.Messages.PutMsg(ctx, result); err != nil {
		return 0, err
	}
	crash.Here("commit.between")
	seq, err := w.broker.Messages.PutMsg(ctx, state)
	if err == nil {
		crash.Here("commit.after")
	}
	return seq, err
}

// commitMessages returns the messages of a result and the terminal state. The
// server stores each only if the state record still has the sequence stateSeq.
func commitMessages(s schema.State, stateSeq uint64, r schema.Result) (result, state *nats.Msg, err error) {
	if result, err = broker.Expecting(subjects.Result(r.ID), &r, stateSeq); err != nil {
		return nil, nil, err
	}
	result.Header[wire.HeaderExpectOf] = []string{subjects.State(r.ID)}
	result.Header[wire.HeaderMsgID] = []string{fmt.Sprintf("%s.%d.%d", r.ID, r.Attempt, stateSeq)} // the server drops a repeated write
	if state, err = broker.Expecting(subjects.State(r.ID), &s, stateSeq); err != nil {
		return nil, nil, err
	}
	return result, state, nil
}

// both writes a result and a terminal state in one atomic batch, if the
// records have the sequences resultSeq and stateSeq. broker.ErrMoved means that they
// are not stored, or were stored by an earlier try.
func (w *writes) both(ctx context.Context, s schema.State, stateSeq uint64, r schema.Result, resultSeq uint64) (uint64, error) {
	result, err := broker.Expecting(subjects.Result(r.ID), &r, resultSeq)
	if err != nil {
		return 0, err
	}
	state, err := broker.Expecting(subjects.State(r.ID), &s, stateSeq)
	if err != nil {
		return 0, err
	}
	return w.broker.Messages.Batch(ctx, result, state)
}

// concluded returns the terminal state of a rollout with this result.
func concluded(s schema.State, r *schema.Result) schema.State {
	s.Status, s.Fault, s.Ack = r.Status, r.Fault, ""
	return s
}
