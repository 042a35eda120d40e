package worker

import (
	"context"
	"errors"
	"net/http"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// model turns the broker's errors into the faults that a gate knows.
type model struct{ caller *broker.Caller }

func (m model) Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
	reply, err := m.caller.Complete(ctx, c, frames)
	var none *broker.NoTrainerError
	var large *broker.TooLargeError
	switch {
	case errors.As(err, &none):
		f := schema.Faultf("call", schema.CodeNoTrainer, schema.WhoTrainer, "%v", none)
		f.Status = http.StatusServiceUnavailable
		return reply, f
	case errors.As(err, &large):
		f := schema.Faultf("call", schema.CodeTooLarge, schema.WhoAgent, "%v", large)
		f.Status, f.AgentMessage = http.StatusRequestEntityTooLarge, "The request is too large: "+large.Error()
		return reply, f
	default:
		return reply, err
	}
}
