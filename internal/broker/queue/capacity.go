package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Fleet asks the workers for the list of live workers. It is empty if there are
// none.
func (t *Trainer) Fleet(ctx context.Context) (schema.Fleet, error) {
	var f schema.Fleet
	m, err := t.broker.BulkConn().RequestWithContext(ctx, subjects.TrainerFleet(t.tid), nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return f, nil
	}
	if err == nil {
		err = schema.Decode(m.Data, &f)
	}
	if err != nil {
		return f, fmt.Errorf("ask which workers are there: %w", broker.Reach(err))
	}
	return f, nil
}

// onAsked sends a trainer the list of live workers. One worker of the queue group
// gets each request.
func (f *fleet) onAsked(m *nats.Msg) {
	ctx, cancel := context.WithTimeout(context.Background(), wire.OpTimeout)
	defer cancel()
	all, err := f.list(ctx)
	if err != nil {
		f.log.Debug().Err(err).Msg("not known who is there")
		return
	}
	answer := schema.FleetOf(all)
	data, err := schema.Encode(&answer)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		f.log.Debug().Err(err).Msg("the list of workers was not sent to a trainer")
	}
}
