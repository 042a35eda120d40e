package stage

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// stopGrace is the time that a process has to end after SIGTERM, and that a
// sandbox has to accept a signal.
const stopGrace = 3 * time.Second

// Await waits for a process and stops it when the context ends. The exit is nil
// if it is unknown.
func Await(ctx context.Context, p sandboxes.Process) (*schema.Exit, error) {
	done := WaitFor(p)
	select {
	case w := <-done:
		return w.Exit, w.Err
	case <-ctx.Done():
		w := Stop(ctx, p, done)
		return w.Exit, context.Cause(ctx)
	}
}

// Waited is the end of a process.
type Waited struct {
	Exit *schema.Exit // nil: unknown
	Err  error
}

// WaitFor waits for a process in the background.
func WaitFor(p sandboxes.Process) <-chan Waited {
	done := make(chan Waited, 1)
	go func() {
		exit, err := p.Wait()
		if err != nil {
			done <- Waited{Err: err}
			return
		}
		done <- Waited{Exit: &exit}
	}()
	return done
}

// Stop sends SIGTERM and then SIGKILL, even after the context has ended. If the
// sandbox does not answer because it is frozen or broken, Stop returns an
// error; the process then ends when the sandbox is closed.
func Stop(ctx context.Context, p sandboxes.Process, done <-chan Waited) Waited {
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
		return Waited{Err: fmt.Errorf("kill: %w", err)}
	}
	select {
	case w := <-done:
		return w
	case <-time.After(30 * time.Second):
		return Waited{Err: errors.New("a killed process does not end")}
	}
}

// signal sends a signal. It fails if the sandbox does not accept it within
// stopGrace.
func signal(ctx context.Context, p sandboxes.Process, s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	return p.Signal(ctx, s)
}
