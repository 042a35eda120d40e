package worker

import (
	"context"
	"errors"
	"net/http"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// model is a gate.Model that turns the broker's errors into the gate's faults.
type model struct{ caller *modelcall.Caller }

func (m model) Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
	reply, err := m.caller.Complete(ctx, c, frames)
	var none *modelcall.NoTrainerError
	var large *broker.TooLargeError
	var full *broker.FullError
	switch {
	case errors.As(err, &none):
		f := schema.Faultf("call", schema.CodeNoTrainer, schema.WhoTrainer, "%v", none)
		f.Status = http.StatusServiceUnavailable
		return reply, f
	case errors.As(err, &large):
		f := schema.Faultf("call", schema.CodeTooLarge, schema.WhoAgent, "%v", large)
		f.Status, f.AgentMessage = http.StatusRequestEntityTooLarge, "The request is too large: "+large.Error()
		return reply, f
	case errors.As(err, &full): // only a large call is stored in a bucket
		f := schema.Faultf("call", schema.CodeFull, schema.WhoTrainer, "%v", full)
		f.Status, f.AgentMessage = http.StatusRequestEntityTooLarge, "The request is too large to be stored."
		return reply, f
	default:
		return reply, err
	}
}
