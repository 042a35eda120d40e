package worker

import (
	"errors"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// outOfMemory turns the loss of a sandbox that ran out of memory into the fault
// of the agent if it has run in that sandbox, and else of the task. It returns
// other errors unchanged.
func (r *Rollout) outOfMemory(phase string, err error) error {
	var stop *ended
	var spoiled *spoiledError
	switch {
	case !errors.Is(err, sandboxes.ErrMemory) || errors.As(err, &stop) || errors.As(err, &spoiled):
		return err
	case r.touched.Load() && r.second == nil:
		return &spoiledError{err}
	default:
		return failed(schema.Faultf(phase, schema.CodeOOM, schema.WhoTask, "%v", err))
	}
}

// blameCommand is outOfMemory for the time in which a command of the task runs.
func blameCommand(phase string, err error) error {
	if !errors.Is(err, sandboxes.ErrMemory) {
		return err
	}
	return failed(schema.Faultf(phase, schema.CodeOOM, schema.WhoTask, "a command of the task ran out of memory: %v", err))
}
