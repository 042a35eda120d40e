package broker

import (
	"context"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Workers lists the workers that announced their presence within the last 40 s.
func (b *Broker) Workers(ctx context.Context) ([]schema.Presence, error) {
	var out []schema.Presence
	err := b.scanAll(ctx, subjects.StreamWorkers, subjects.PresenceFilter, func(m stored) {
		var p schema.Presence
		if err := schema.Decode(m.data, &p); err != nil {
			b.log.Warn().Err(err).Str("subject", m.subject).Msg("a worker's presence cannot be read")
			return
		}
		out = append(out, p)
	})
	return out, err
}
