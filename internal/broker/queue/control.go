package queue

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
)

// control carries out the commands of other workers.
type control struct {
	*base
	resolver *resolver
	audits   chan schema.ID
}

func newControl(v *resolver) *control { return &control{v.base, v, make(chan schema.ID, 256)} }

// onAsked handles commands from other workers.
func (w *control) onAsked(m *nats.Msg) {
	var c schema.Control
	if err := schema.Decode(m.Data, &c); err != nil {
		w.log.Warn().Err(err).Msg("a command of another worker cannot be read")
		return
	}
	switch c.Do {
	case schema.ControlCancel:
		j := w.resolver.jobs.get(c.ID)
		if j == nil || !j.claimed.Load() || j.Attempt != c.Attempt {
			return // the rollout has ended, or an audit gives it back
		}
		j.end(ErrCancelled)
	case schema.ControlCopy:
		if j := w.resolver.jobs.get(c.ID); j != nil && j.claimed.Load() && j.Attempt == c.Attempt {
			if err := w.broker.BulkConn().PublishMsg(requestCopy(c.ID, j.msg.Load())); err != nil { // the janitor asks again
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

// serve gives back rollouts that this instance owns by their state record
// but does not run.
func (w *control) serve(ctx context.Context) {
	for {
		var id schema.ID
		select {
		case <-ctx.Done():
			return
		case id = <-w.audits:
		}
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		m := w.resolver.about(id, askAudit)
		did, err := w.resolver.resolve(op, m)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.log.Warn().Err(err).Str("rollout", string(id)).Msg("a rollout that is not here was not given back; the janitor asks again")
		}
		if err == nil && did.writes() && m.record.Value.Status.Terminal() {
			w.hint(id)
		}
	}
}
