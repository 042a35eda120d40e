package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// phase is one stage of a running rollout.
type phase struct {
	r    *Rollout
	name string
	exit *schema.Exit
	tail tail
}

// overtime is the cause of the end of a phase's context by the phase's time
// limit.
type overtime struct {
	limit time.Duration
	err   *BrokenError
}

func (o *overtime) Error() string { return o.err.Error() }
func (o *overtime) Unwrap() error { return o.err }

// phase runs one stage and records it in the result. limitMS bounds its time in
// milliseconds; 0: no limit.
func (r *Rollout) phase(ctx context.Context, name string, limitMS int64, run func(context.Context, *phase) error) error {
	p := &phase{r: r, name: name}
	start := time.Now()
	r.emit(&schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: name}})
	inner, late := ctx, (*overtime)(nil)
	if limitMS > 0 {
		late = &overtime{ms(limitMS), &BrokenError{schema.Faultf(name, schema.CodeTimeout, schema.WhoSandbox, "no end within %d ms", limitMS)}}
		var cancel context.CancelFunc
		inner, cancel = r.clock.limit(ctx, late.limit, late)
		defer cancel()
	}
	err := r.blameFiles(name, r.blameRuin(name, run(inner, p)))
	var spoiled *spoiledError
	if err != nil && inner.Err() != nil { // the context's end explains the error
		if cause := context.Cause(inner); !errors.Is(cause, late) || !errors.As(err, &spoiled) {
			err = cause
		}
	}
	took := time.Since(start).Milliseconds()
	r.result.Phases = append(r.result.Phases, schema.Phase{Name: name, Start: start.UnixMilli(), MS: took, Exit: p.exit, Output: r.rec.secrets.text(p.tail.String())})
	told := &schema.PhaseEvent{Name: name, Ended: true, MS: took, Exit: p.exit}
	var stop *ended
	r.at = name
	switch {
	case errors.As(err, &stop):
		told.Fault = stop.fault
	case errors.As(err, &spoiled):
		told.Fault = spoiled.fault(name)
	case errors.Is(err, queue.ErrCancelled):
		told.Fault = schema.Faultf(name, schema.CodeCancelled, schema.WhoTrainer, "%v", err)
	case err != nil:
		told.Fault = schema.Faultf(name, schema.CodeInternal, schema.WhoWorker, "%v", err)
	}
	r.emit(&schema.Event{Type: schema.EventPhase, Phase: told})
	return err
}

// output returns a writer that shows a command's output as events and keeps its
// end in the result.
func (p *phase) output(stream string) io.Writer {
	return io.MultiWriter(&p.tail, p.r.rec.logWriter(p.name, stream))
}

// tailSize is the maximum output of a phase in its result, in bytes.
const tailSize = 16 << 10

// tail keeps the last bytes written to it. One goroutine writes both stdout and
// stderr of a command.
type tail struct {
	buf     []byte
	dropped bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.dropped = true
	}
	return len(p), nil
}

func (t *tail) String() string {
	text := schema.Clip(string(t.buf), 2*tailSize)
	if t.dropped {
		return "[…]" + text
	}
	return text
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
