package broker

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Tap hears events. Watching costs the rollouts nothing.
type Tap struct {
	b        *Broker
	consumer jetstream.Consumer
	subject  string
}

// OpenTap begins to hear the events of one rollout from its first on, or, when
// id is empty, those of every rollout from now on.
func (b *Broker) OpenTap(ctx context.Context, id schema.ID) (*Tap, error) {
	policy := jetstream.DeliverNewPolicy
	if id != "" {
		policy = jetstream.DeliverAllPolicy
	}
	subject := subjects.EventsOf(id)
	c, err := b.js.OrderedConsumer(ctx, subjects.StreamEvents, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: policy,
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", subject, err)
	}
	return &Tap{b, c, subject}, nil
}

// Run calls handle with each event until the context ends.
func (t *Tap) Run(ctx context.Context, handle func(schema.Event)) error {
	messages, err := t.consumer.Messages(jetstream.PullMaxMessages(64))
	if err != nil {
		return fmt.Errorf("watch %s: %w", t.subject, err)
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch %s: %w", t.subject, err)
		}
		var e schema.Event
		if err := schema.Decode(m.Data(), &e); err != nil {
			t.b.log.Warn().Err(err).Str("subject", m.Subject()).Msg("an event cannot be read")
			continue
		}
		handle(e)
	}
}
