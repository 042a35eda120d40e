package testenv

import (
	"context"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/schema"
)

// Complete asks a model and returns its answer. frames gets the frames.
func Complete(ctx context.Context, m gate.Model, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
	var reply schema.Reply
	err := m.Complete(ctx, c, func(f schema.Frame) error {
		if f.Kind == schema.FrameFinal {
			reply = *f.Reply
		}
		return frames(f)
	})
	return reply, err
}
