package queue

import (
	"context"
	"time"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
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
	req, err := w.requests.read(ctx, d)
	if err != nil || req == nil {
		return nil, err
	}
	if aside, err := w.parking.setAside(ctx, d, req); aside || err != nil {
		return nil, err
	}
	m := w.resolver.aboutMessage(d, req, askRun)
	s, err := w.resolver.resolve(ctx, m)
	if err == nil && s == stepBegin {
		job := m.own.begin(m.record)
		if job.Attempt == 1 && req.DelayMS == 0 {
			w.cfg.Metrics.Started(time.Since(d.stored))
		}
		return job, nil
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
	return nil, w.requests.settle(ctx, m, s)
}

// unclaim gives back a rollout that this worker may have claimed before the
// context ended, so that the claim spends no try.
func (w *Worker) unclaim(ctx context.Context, id schema.ID) {
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
	defer cancel()
	m := w.resolver.about(id, askAudit)
	s, err := w.resolver.resolve(op, m)
	if err != nil {
		w.log.Warn().Err(err).Str("rollout", string(id)).Msg("it is not known whether a rollout was claimed as the worker stopped; another worker takes it over")
	} else if s.writes() && m.record.Value.Status.Terminal() {
		w.hint(id)
	}
}
