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

// Leave gives the shard of a process up, as far as workers can be reached.
func (p *Processes) Leave(one schema.Process) error {
	one.Ended = true
	data, err := schema.Encode(&schema.Attach{V: schema.Version, Process: one})
	if err == nil {
		err = p.broker.BulkConn().Publish(subjects.TrainerAttach(p.tid), data)
	}
	if err == nil {
		err = p.broker.BulkConn().FlushTimeout(time.Second)
	}
	if err != nil {
		return fmt.Errorf("give up shard %s of trainer %s: %w", one.Shard, p.tid, broker.Reach(err))
	}
	return nil
}

// Heard calls handle when another process of this trainer asks whether this one
// runs, or has taken its place, until stop is called.
func (p *Processes) Heard(instance string, handle func()) (stop func(), err error) {
	return wire.Subscribe(p.broker.BulkConn(), subjects.ProcessInbox(p.tid, instance), func(m *nats.Msg) {
		if m.Reply != "" {
			if err := m.Respond(nil); err != nil {
				p.broker.Log().Debug().Err(err).Msg("another process of this trainer was not answered")
			}
		}
		handle()
	})
}

// Holds answers processes that ask which one has the shard with this one, until stop is
// called.
func (p *Processes) Holds(one *schema.Process) (stop func(), err error) {
	data, err := schema.Encode(&schema.Attached{V: schema.Version, Process: *one})
	if err != nil {
		return nil, err
	}
	return wire.Subscribe(p.broker.BulkConn(), subjects.ShardInbox(p.tid, one.Shard), func(m *nats.Msg) {
		if err := m.Respond(data); err != nil {
			p.broker.Log().Debug().Err(err).Msg("another process of this trainer was not answered")
		}
	})
}

// Holder asks for the process that has a shard; nil: none answers. Workers do not know
// it after a restart of the server, or when all of them were away for a while.
func (p *Processes) Holder(ctx context.Context, shard string) (*schema.Process, error) {
	op, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	m, err := p.broker.BulkConn().RequestWithContext(op, subjects.ShardInbox(p.tid, shard), nil)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded):
		return nil, nil
	}
	var got schema.Attached
	if err == nil {
		err = schema.Decode(m.Data, &got)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the process of shard %s of trainer %s: %w", shard, p.tid, broker.Reach(err))
	}
	return &got.Process, nil
}

// Runs asks another process of this trainer whether it runs. known is false if it
// did not answer, but may still run. One that was heard a short time ago may be
// reconnecting: it is asked again.
func (p *Processes) Runs(ctx context.Context, instance string, silent time.Duration) (runs, known bool) {
	for try := 1; ; try++ {
		op, cancel := context.WithTimeout(ctx, answerWithin)
		_, err := p.broker.BulkConn().RequestWithContext(op, subjects.ProcessInbox(p.tid, instance), nil)
		cancel()
		if !errors.Is(err, nats.ErrNoResponders) {
			return err == nil, err == nil
		}
		if silent >= heardLately || try == mostAsked {
			return false, true
		}
		if wire.Pause(ctx, askAgain) != nil {
			return false, false
		}
	}
}

const (
	// answerWithin is the time in which a process that runs answers another one.
	answerWithin = 2 * time.Second
	// heardLately is the silence after which a process is not reconnecting any more.
	heardLately = 10 * time.Second
	// mostAsked is the number of times that a process is asked which was heard lately,
	// with pauses of askAgain. A connection comes back within half a second if it can.
	mostAsked = 3
	askAgain  = 400 * time.Millisecond
)

// Displaced tells another process of this trainer that this one has its place. The
// message may be lost: the other one asks again by itself.
func (p *Processes) Displaced(instance string) error {
	if err := p.broker.BulkConn().Publish(subjects.ProcessInbox(p.tid, instance), nil); err != nil {
		return fmt.Errorf("send a message to process %s: %w", instance, broker.Reach(err))
	}
	return nil
}
