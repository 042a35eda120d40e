package broker

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Tap calls handle for events until the context ends: those of one rollout
// from its beginning, or, when id is empty, of every rollout from now on.
// Watching costs the rollouts nothing.
func (b *Broker) Tap(ctx context.Context, id schema.ID, handle func(schema.Event)) error {
	policy := jetstream.DeliverNewPolicy
	if id != "" {
		policy = jetstream.DeliverAllPolicy
	}
	c, err := b.js.OrderedConsumer(ctx, subjects.StreamEvents, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subjects.EventsOf(id)}, DeliverPolicy: policy,
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", subjects.EventsOf(id), err)
	}
	messages, err := c.Messages(jetstream.PullMaxMessages(64))
	if err != nil {
		return fmt.Errorf("watch %s: %w", subjects.EventsOf(id), err)
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch %s: %w", subjects.EventsOf(id), err)
		}
		var e schema.Event
		if err := schema.Decode(m.Data(), &e); err != nil {
			b.log.Warn().Err(err).Str("subject", m.Subject()).Msg("an event cannot be read")
			continue
		}
		handle(e)
	}
}
