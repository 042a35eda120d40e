package worker

import (
	"errors"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// ruined reports whether the processes of a sandbox caused its loss, so that a
// further attempt would end in the same way.
func ruined(err error) bool {
	return errors.Is(err, sandboxes.ErrMemory) || errors.Is(err, sandboxes.ErrKilled)
}

// ruinCode returns the code of the fault that explains such a loss.
func ruinCode(err error) string {
	if errors.Is(err, sandboxes.ErrMemory) {
		return schema.CodeOOM
	}
	return schema.CodeSpoiled
}

// blameRuin turns the loss of a sandbox through its processes into the fault of
// the agent if it has run in that sandbox, and else of the task. It returns other
// errors unchanged.
func (r *Rollout) blameRuin(phase string, err error) error {
	var stop *ended
	var spoiled *spoiledError
	switch {
	case !ruined(err) || errors.As(err, &stop) || errors.As(err, &spoiled):
		return err
	case r.touched.Load() && r.second == nil:
		return &spoiledError{err}
	default:
		return failed(schema.Faultf(phase, ruinCode(err), schema.WhoTask, "%v", err))
	}
}

// blameCommand is blameRuin for the time in which a command of the task runs.
func blameCommand(phase string, err error) error {
	switch {
	case !ruined(err):
		return err
	case errors.Is(err, sandboxes.ErrMemory):
		return failed(schema.Faultf(phase, schema.CodeOOM, schema.WhoTask, "a command of the task ran out of memory: %v", err))
	default:
		return failed(schema.Faultf(phase, ruinCode(err), schema.WhoTask, "while a command of the task ran: %v", err))
	}
}

// blameFiles turns an operation on its files that a sandbox refuses into a fault
// of the task, until an agent has run: a further attempt would end in the same way.
func (r *Rollout) blameFiles(phase string, err error) error {
	var refused *sandboxes.RefusedError
	var stop *ended
	var spoiled *spoiledError
	if !errors.As(err, &refused) || errors.As(err, &stop) || errors.As(err, &spoiled) {
		return err
	}
	code := schema.CodeSetup
	if isFull(err) {
		code = schema.CodeDisk
	}
	return failed(schema.Faultf(phase, code, schema.WhoTask, "%v", err))
}
