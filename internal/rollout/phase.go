package rollout

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// phase runs one stage and records it in the result. limitMS bounds its time in
// milliseconds; 0: no limit.
func (r *Rollout) phase(ctx context.Context, name string, limitMS int64, run func(context.Context, *record.Phase) error) error {
	p := r.Record.Begin(name)
	inner, late := ctx, (*ends.Overtime)(nil)
	if limitMS > 0 {
		late = &ends.Overtime{Limit: ms(limitMS), Err: &ends.Broken{Fault: schema.Faultf(name, schema.CodeTimeout, schema.WhoSandbox, "no end within %d ms", limitMS)}}
		var cancel context.CancelFunc
		inner, cancel = r.clock.limit(ctx, late.Limit, late)
		defer cancel()
	}
	err := ends.BlameFiles(name, r.blameRuin(name, run(inner, p)))
	var spoiled *ends.Spoiled
	if err != nil && inner.Err() != nil { // the context's end explains the error
		if cause := context.Cause(inner); !errors.Is(cause, late) || !errors.As(err, &spoiled) {
			err = cause
		}
	}
	r.at = name
	p.End(faultOf(name, err))
	return err
}

// faultOf returns the fault with which a phase ends; nil: none.
func faultOf(phase string, err error) *schema.Fault {
	var stop *ends.Failed
	var spoiled *ends.Spoiled
	switch {
	case errors.As(err, &stop):
		return stop.Fault
	case errors.As(err, &spoiled):
		return spoiled.Fault(phase)
	case errors.Is(err, queue.ErrCancelled):
		return schema.Faultf(phase, schema.CodeCancelled, schema.WhoTrainer, "%v", err)
	case err != nil:
		return schema.Faultf(phase, schema.CodeInternal, schema.WhoWorker, "%v", err)
	default:
		return nil
	}
}

// blameRuin blames the agent for the loss of a sandbox if it has run in it.
func (r *Rollout) blameRuin(phase string, err error) error {
	return ends.BlameRuin(phase, r.touched.Load() && r.second == nil, err)
}

// stopGrace is the time that a process has to end after SIGTERM, and that a
// sandbox has to accept a signal.
const stopGrace = 3 * time.Second

// await waits for a process and stops it when the context ends. The exit is nil
// if it is unknown.
func await(ctx context.Context, p sandboxes.Process) (*schema.Exit, error) {
	done := waitFor(p)
	select {
	case w := <-done:
		return w.exit, w.err
	case <-ctx.Done():
		w := stop(ctx, p, done)
		return w.exit, context.Cause(ctx)
	}
}

type waited struct {
	exit *schema.Exit // nil: unknown
	err  error
}

func waitFor(p sandboxes.Process) <-chan waited {
	done := make(chan waited, 1)
	go func() {
		exit, err := p.Wait()
		if err != nil {
			done <- waited{err: err}
			return
		}
		done <- waited{exit: &exit}
	}()
	return done
}

// stop sends SIGTERM and then SIGKILL, even after the context has ended. If the
// sandbox does not answer because it is frozen or broken, stop returns an
// error; the process then ends when the sandbox is closed.
func stop(ctx context.Context, p sandboxes.Process, done <-chan waited) waited {
	ctx = context.WithoutCancel(ctx)
	if err := signal(ctx, p, syscall.SIGTERM); err == nil {
		grace := time.NewTimer(stopGrace)
		defer grace.Stop()
		select {
		case w := <-done:
			return w
		case <-grace.C:
		}
	}
	if err := signal(ctx, p, syscall.SIGKILL); err != nil {
		return waited{err: fmt.Errorf("kill: %w", err)}
	}
	select {
	case w := <-done:
		return w
	case <-time.After(30 * time.Second):
		return waited{err: errors.New("a killed process does not end")}
	}
}

// signal sends a signal. It fails if the sandbox does not accept it within
// stopGrace.
func signal(ctx context.Context, p sandboxes.Process, s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	return p.Signal(ctx, s)
}
