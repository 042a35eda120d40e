package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// base has the connection, names and settings of a worker, which all parts of it
// share.
type base struct {
	broker        *broker.Broker
	cfg           WorkerConfig
	wid, instance string
	timing        broker.Timing
	log           zerolog.Logger
}

func (b *base) offer() schema.Offer {
	if b.cfg.Offer == nil {
		return schema.Offer{}
	}
	return b.cfg.Offer()
}

// lacks returns an error that names the first need of a request that this worker
// does not offer; nil if it can run the request.
func (b *base) lacks(r *schema.Request) error {
	if b.cfg.Offer == nil {
		return nil
	}
	o := b.cfg.Offer()
	return o.Lacks(r)
}

// hint tells a trainer that a result was committed.
func (b *base) hint(id schema.ID) {
	data, err := schema.Encode(&schema.Hint{V: schema.Version, ID: id})
	if err == nil {
		err = b.broker.BulkConn().Publish(subjects.TrainerResults(id.Trainer()), data)
	}
	if err != nil {
		b.log.Debug().Err(err).Str("rollout", string(id)).Msg("a hint was not published")
	}
}

// command sends a command to a worker.
func (b *base) command(worker string, c *schema.Control) error {
	data, err := schema.Encode(c)
	if err != nil {
		return err
	}
	if err := b.broker.BulkConn().Publish(subjects.WorkerControl(worker), data); err != nil {
		return fmt.Errorf("send a command to worker %s: %w", worker, err)
	}
	return nil
}

// copyOf returns the kept copy of a claimed request, or a request with only the
// id and trainer if there is no copy.
func (b *base) copyOf(ctx context.Context, id schema.ID) *schema.Request {
	r, err := broker.ReadRecord[schema.Request](ctx, b.broker.Messages, subjects.RequestCopy(id))
	if err != nil || r.Seq == 0 {
		return &schema.Request{ID: id, Trainer: id.Trainer()}
	}
	return &r.Value
}

// message returns the message of a rollout in its trainer's queue, at one of these
// sequences or parked; nil: none.
func (b *base) message(ctx context.Context, id schema.ID, seqs ...uint64) (*jetstream.RawStreamMsg, error) {
	for _, seq := range seqs {
		if seq == 0 {
			continue
		}
		m, err := b.broker.Messages.At(ctx, subjects.Queue(id.Trainer()), seq)
		if err != nil {
			return nil, err
		}
		if m != nil && requestID(m.Data) == id {
			return m, nil
		}
	}
	return parked(ctx, b.broker.Messages, id)
}

// readState reads the state of a rollout, again and again until the context ends
// or the record is read. The error for an unreadable one is *broker.UnreadableRecord.
func (b *base) readState(ctx context.Context, id schema.ID) (broker.Record[schema.State], error) {
	for try := 0; ; try++ {
		r, err := broker.ReadRecord[schema.State](ctx, b.broker.Messages, subjects.State(id))
		var bad *broker.UnreadableRecord
		if err == nil || errors.As(err, &bad) {
			return r, err
		}
		if perr := wire.Pause(ctx, wire.Backoff(try)); perr != nil {
			return r, errors.Join(err, perr)
		}
	}
}

// again logs that a request to the server is repeated.
func (b *base) again(try int, what string, err error) {
	level := zerolog.DebugLevel
	if try == wire.WarnAfter {
		level = zerolog.WarnLevel
	}
	b.log.WithLevel(level).Err(err).Str("what", what).Msg("the server is asked again")
}
