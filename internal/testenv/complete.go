package testenv

import (
	"context"

	"github.com/turngate/turngate/schema"
)

// Asker answers model calls, as a gate.Model does.
type Asker interface {
	Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) error
}

// Complete asks a model and returns its answer. frames gets the frames.
func Complete(ctx context.Context, m Asker, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
	var reply schema.Reply
	err := m.Complete(ctx, c, func(f schema.Frame) error {
		if f.Kind == schema.FrameFinal {
			reply = *f.Reply
		}
		return frames(f)
	})
	return reply, err
}
