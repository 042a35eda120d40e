package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Processes is the part of a trainer's client for its processes, each of which has a
// shard.
type Processes struct {
	broker *broker.Broker
	tid    string
}

// Attach asks a worker for the calls of a shard. The answer names the process that
// has them. The error says so if there is no worker.
func (p *Processes) Attach(ctx context.Context, a *schema.Attach) (schema.Attached, error) {
	var got schema.Attached
	data, err := schema.Encode(a)
	if err != nil {
		return got, err
	}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	m, err := p.broker.BulkConn().RequestWithContext(op, subjects.TrainerAttach(p.tid), data)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		err = ErrNoWorker
	case err == nil:
		err = schema.Decode(m.Data, &got)
	}
	if err == nil && got.Error != "" {
		err = errors.New(got.Error)
	}
	if err != nil {
		return got, fmt.Errorf("ask for the calls of shard %s of trainer %s: %w", a.Process.Shard, p.tid, broker.Reach(err))
	}
	return got, nil
}

// Heard calls handle when another process of this trainer asks whether this one
// runs, or has taken its place, until stop is called.
func (p *Processes) Heard(instance string, handle func()) (stop func(), err error) {
	subject := subjects.ProcessInbox(p.tid, instance)
	sub, err := p.broker.BulkConn().Subscribe(subject, func(m *nats.Msg) {
		if m.Reply != "" {
			if err := m.Respond(nil); err != nil {
				p.broker.Log().Debug().Err(err).Msg("another process of this trainer was not answered")
			}
		}
		handle()
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return wire.Bounded(p.broker.BulkConn(), sub)
}

// Runs asks another process of this trainer whether it runs. known is false if it
// did not answer, but may still run.
func (p *Processes) Runs(ctx context.Context, instance string) (runs, known bool) {
	op, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := p.broker.BulkConn().RequestWithContext(op, subjects.ProcessInbox(p.tid, instance), nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return false, true
	}
	return err == nil, err == nil
}

// answerWithin is the time in which a process that runs answers another one.
const answerWithin = 2 * time.Second

// Displaced tells another process of this trainer that this one has its place. The
// message may be lost: the other one asks again by itself.
func (p *Processes) Displaced(instance string) error {
	if err := p.broker.BulkConn().Publish(subjects.ProcessInbox(p.tid, instance), nil); err != nil {
		return fmt.Errorf("tell process %s: %w", instance, broker.Reach(err))
	}
	return nil
}
