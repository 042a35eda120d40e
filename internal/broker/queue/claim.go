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

// Take waits for a request that this worker can run and claims it: when Take
// returns, the state record names this worker. Other requests are settled in
// between. The only error is the context's cause.
func (w *Worker) Take(ctx context.Context) (*Job, error) {
	for {
		d, err := w.slots.next(ctx)
		if d != nil && ctx.Err() != nil {
			_ = d.nak(0)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			w.log.Debug().Err(err).Msg("no request could be pulled")
			if err := wire.Pause(ctx, 250*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		}
		if d == nil {
			continue
		}
		job, err := w.claim(ctx, d)
		if err != nil {
			if ctx.Err() == nil {
				w.log.Warn().Err(err).Str("subject", d.subject).Uint64("message", d.seq).Msg("a request could not be claimed, it goes back")
			}
			_ = d.nak(time.Second)
			continue
		}
		if job != nil {
			return job, nil
		}
	}
}

// claim turns the message into a job, or settles it and returns nil.
func (w *Worker) claim(ctx context.Context, d *delivery) (*Job, error) {
	req, err := w.read(ctx, d)
	if err != nil || req == nil {
		return nil, err
	}
	if aside, err := w.parking.setAside(ctx, d, req); aside || err != nil {
		return nil, err
	}
	m := w.aboutMessage(d, req, askRun)
	s, err := w.resolve(ctx, m)
	if err == nil && s == stepBegin {
		return m.own.begin(m.record), nil
	}
	if m.own != nil {
		m.own.forget()
	}
	if err != nil {
		if m.own != nil && ctx.Err() != nil {
			w.unclaim(ctx, req.ID)
		}
		return nil, err
	}
	return nil, w.settle(ctx, m, s)
}

// unclaim gives back a rollout that this worker may have claimed before the
// context ended, so that the claim spends no try.
func (w *Worker) unclaim(ctx context.Context, id schema.ID) {
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
	defer cancel()
	m := w.about(id, askAudit)
	s, err := w.resolve(op, m)
	if err != nil {
		w.log.Warn().Err(err).Str("rollout", string(id)).Msg("it is not known whether a rollout was claimed as the worker stopped; another worker takes it over")
	} else if s.writes() && m.record.Value.Status.Terminal() {
		w.hint(id)
	}
}

// aboutMessage returns a resolution for a queue message.
func (w *Worker) aboutMessage(d *delivery, req *schema.Request, why ask) *resolution {
	m := w.about(req.ID, why)
	m.req, m.d, m.message, m.ack, m.maxAttempts, m.floor = req, d, d.seq, d.ack, req.MaxAttempts, req.AttemptFloor
	return m
}

// settle settles a queue message after the last step about its rollout.
func (w *Worker) settle(ctx context.Context, m *resolution, s step) error {
	switch s {
	case stepAdopt:
		if j := w.jobs.get(m.id); j != nil {
			j.adopt(m.d)
			return nil
		}
		return m.d.nak(0) // the job has ended since
	case stepLater:
		if m.lease == leaseAlive {
			return m.d.nak(w.timing.Busy)
		}
		return m.d.nak(time.Second)
	case stepEnded, writeOutcome, writeFinish:
		w.hint(m.id)
	default:
	}
	return m.d.done(ctx)
}

// adopt replaces the handle of the job's message if d is newer.
func (j *Job) adopt(d *delivery) {
	if old := j.msg.Load(); d.received.After(old.received) {
		j.msg.CompareAndSwap(old, d)
	}
}

// writeClaim writes a state that names this worker, and a copy of the request, to
// replace a lost queue message. Both go over the same connection to the same
// stream, so the copy is stored first. They are not one batch, since for each
// batch a server with one replica opens a file store.
func (w *Worker) writeClaim(ctx context.Context, m *resolution, next *schema.State) (uint64, error) {
	if m.own == nil { // registered before the write, so that the rollout counts as running here
		if m.own = w.newJob(m.req, m.d); m.own == nil {
			return 0, broker.ErrMoved // another slot of this worker claims it
		}
	}
	state, err := broker.Expecting(subjects.State(m.id), next, m.record.Seq)
	if err != nil {
		return 0, err
	}
	crash.Here("claim.before")
	copied, err := w.JetStream().PublishMsgAsync(requestCopy(m.id, m.d), jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, fmt.Errorf("keep a copy of the request of %s: %w", m.id, broker.Reach(err))
	}
	m.attempt = next.Attempt
	// The write ignores the end of ctx. Otherwise unclaim could read the state before
	// the server stores it.
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
	defer cancel()
	seq, err := w.PutMsg(op, state)
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
	return &nats.Msg{Subject: subjects.RequestCopy(id), Data: d.data, Header: nats.Header{subjects.HeaderSubject: {d.subject}}}
}

// storeCopy writes the copy of a claimed request. Without the copy no worker could
// run the rollout after the loss of the queue.
func (w *Worker) storeCopy(ctx context.Context, m *resolution) error {
	crash.Here("copy.before")
	_, err := broker.Insist(ctx, w.Broker, "keep a copy of the request of "+string(m.id), func(ctx context.Context) (uint64, error) {
		return w.PutMsg(ctx, requestCopy(m.id, m.d))
	})
	if err != nil {
		return err
	}
	m.copied = true
	crash.Here("copy.stored")
	return nil
}

// begin records the claimed state in the job. From now on the worker verifies
// the job against its state record.
func (j *Job) begin(r broker.Record[schema.State]) *Job {
	j.mu.Lock()
	j.record, j.Attempt = r, r.Value.Attempt
	j.mu.Unlock()
	j.claimed.Store(true)
	if r.Value.Status == schema.StatusCancelling {
		j.end(ErrCancelled)
	}
	j.w.jobs.began(j)
	crash.Here("claim.after")
	return j
}
