// Package ends has the errors by which a stage ends its rollout, and tells the party at fault
// for an error of a sandbox.
package ends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Failed means that the rollout failed for a reason that another attempt would meet
// again. Its result has the fault.
type Failed struct{ Fault *schema.Fault }

func (e *Failed) Error() string { return "failed: " + e.Fault.Error() }

// Fail returns a *Failed.
func Fail(f *schema.Fault) error { return &Failed{f} }

// Broken means that the sandbox or the worker is broken. Another attempt may succeed.
type Broken struct {
	Fault   *schema.Fault
	Service *sandboxes.ServiceError // that is the reason; nil: another one
}

func (e *Broken) Error() string { return e.Fault.Error() }

// Spoiled means that an operation on a sandbox, or on an agent's files for another
// sandbox, fails although it succeeded before the agent ran.
type Spoiled struct{ Err error }

func (e *Spoiled) Error() string { return e.Err.Error() }
func (e *Spoiled) Unwrap() error { return e.Err }

// Fault blames the agent.
func (e *Spoiled) Fault(phase string) *schema.Fault {
	text := schema.Clip(e.Error(), 1000)
	switch {
	case errors.Is(e.Err, sandboxes.ErrMemory):
		return schema.Faultf(phase, schema.CodeOOM, schema.WhoAgent, "it ran out of memory: %s", text)
	case errors.Is(e.Err, sandboxes.ErrKilled):
		return schema.Faultf(phase, schema.CodeSpoiled, schema.WhoAgent, "it ended the first process of its sandbox: %s", text)
	case isFull(e):
		return schema.Faultf(phase, schema.CodeDisk, schema.WhoAgent, "after the agent ran: %s", text)
	default:
		return schema.Faultf(phase, schema.CodeSpoiled, schema.WhoAgent, "after the agent ran: %s", text)
	}
}

// isFull reports whether an operation in a sandbox failed because its disk is full.
func isFull(err error) bool {
	return strings.Contains(err.Error(), "no space left on device") || strings.Contains(err.Error(), "disk quota exceeded")
}

// Overtime is the cause of the end of a phase's context by the phase's time limit.
type Overtime struct {
	Limit time.Duration
	Err   *Broken
}

func (o *Overtime) Error() string { return o.Err.Error() }
func (o *Overtime) Unwrap() error { return o.Err }

// slowPart is a divisor: an operation that takes 1/slowPart of its phase's time
// limit or more explains that the phase is over the limit.
const slowPart = 4

// Spoils turns the error of an operation that took this time into a *Spoiled if the
// agent has run, unless the sandbox is gone, the context is over, or the data for the
// sandbox could not be read. If the phase is over its time limit because of this
// operation, such as a walk over millions of files, the agent has spoiled the sandbox,
// too.
func Spoils(ctx context.Context, touched *atomic.Bool, took time.Duration, err error) error {
	var none *sandboxes.NoCommandError
	var unread *sandboxes.SourceError
	var late *Overtime
	if errors.As(err, &unread) {
		return err
	}
	if err != nil && touched.Load() && errors.As(context.Cause(ctx), &late) && took >= late.Limit/slowPart {
		return &Spoiled{fmt.Errorf("an operation on its files took more than %s: %w", took.Round(time.Second), err)}
	}
	if err == nil || !touched.Load() || ctx.Err() != nil || errors.Is(err, sandboxes.ErrLost) || errors.As(err, &none) {
		return err
	}
	return &Spoiled{err}
}

// blamed reports whether an error names the party at fault already.
func blamed(err error) bool {
	var stop *Failed
	var spoiled *Spoiled
	return errors.As(err, &stop) || errors.As(err, &spoiled)
}

// Ruined reports whether the processes of a sandbox caused its loss, so that a
// further attempt would end in the same way.
func Ruined(err error) bool {
	return errors.Is(err, sandboxes.ErrMemory) || errors.Is(err, sandboxes.ErrKilled)
}

// ruinCode returns the code of the fault that explains such a loss.
func ruinCode(err error) string {
	if errors.Is(err, sandboxes.ErrMemory) {
		return schema.CodeOOM
	}
	return schema.CodeSpoiled
}

// BlameRuin turns the loss of a sandbox through its processes into the fault of
// the agent if its processes are in that sandbox, and else of the task. It returns
// other errors unchanged.
func BlameRuin(phase string, agent bool, err error) error {
	switch {
	case !Ruined(err) || blamed(err):
		return err
	case agent:
		return &Spoiled{err}
	default:
		return Fail(schema.Faultf(phase, ruinCode(err), schema.WhoTask, "%v", err))
	}
}

// BlameCommand is BlameRuin for the time in which a command of the task runs.
func BlameCommand(phase string, err error) error {
	switch {
	case !Ruined(err):
		return err
	case errors.Is(err, sandboxes.ErrMemory):
		return Fail(schema.Faultf(phase, schema.CodeOOM, schema.WhoTask, "a command of the task ran out of memory: %v", err))
	default:
		return Fail(schema.Faultf(phase, schema.CodeSpoiled, schema.WhoTask, "while a command of the task ran: %v", err))
	}
}

// BlameFiles turns an operation on its files that a sandbox refuses into a fault
// of the task, until an agent has run: a further attempt would end in the same way.
func BlameFiles(phase string, err error) error {
	var refused *sandboxes.RefusedError
	if !errors.As(err, &refused) || blamed(err) {
		return err
	}
	code := schema.CodeSetup
	if isFull(err) {
		code = schema.CodeDisk
	}
	return Fail(schema.Faultf(phase, code, schema.WhoTask, "%v", err))
}

// UserFault returns a fault that names the wrong field of a request or its
// task.
func UserFault(err error) *schema.Fault {
	code := schema.CodeInvalid
	var no *sandboxes.UnsupportedError
	if errors.As(err, &no) {
		code = schema.CodeUnsupported
	}
	return schema.Faultf("request", code, schema.WhoUser, "%v", err)
}
