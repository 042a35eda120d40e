package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// phase is one stage of a rollout while it runs.
type phase struct {
	r    *Rollout
	name string
	exit *schema.Exit
	tail tail
}

// phase runs one stage and records it. limitMS bounds it; 0: no bound.
func (r *Rollout) phase(ctx context.Context, name string, limitMS int64, run func(context.Context, *phase) error) error {
	p := &phase{r: r, name: name}
	start := time.Now()
	r.emit(&schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: name}})
	inner := ctx
	if limitMS > 0 {
		why := &BrokenError{schema.Faultf(name, schema.CodeTimeout, schema.WhoSandbox, "no end within %d ms", limitMS)}
		var cancel context.CancelFunc
		inner, cancel = r.clock.limit(ctx, time.Duration(limitMS)*time.Millisecond, why)
		defer cancel()
	}
	err := run(inner, p)
	if err != nil && inner.Err() != nil { // whatever failed, this is why
		err = context.Cause(inner)
	}
	took := time.Since(start).Milliseconds()
	r.result.Phases = append(r.result.Phases, schema.Phase{Name: name, Start: start.UnixMilli(), MS: took, Exit: p.exit, Output: r.rec.redact(p.tail.String())})
	told := &schema.PhaseEvent{Name: name, Ended: true, MS: took, Exit: p.exit}
	var stop *ended
	if errors.As(err, &stop) {
		told.Fault = stop.fault
	} else if err != nil {
		told.Fault = schema.Faultf(name, schema.CodeInternal, schema.WhoWorker, "%v", err)
	}
	r.emit(&schema.Event{Type: schema.EventPhase, Phase: told})
	return err
}

// output shows what a command prints to those who watch, and keeps its end.
func (p *phase) output(stream string) io.Writer {
	return io.MultiWriter(&p.tail, p.r.rec.logWriter(p.name, stream))
}

// tailSize is how much output of a phase its result keeps, in bytes.
const tailSize = 16 << 10

// tail keeps the last bytes that were written to it. Stdout and stderr of one
// command are written by one goroutine.
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

// stopGrace is how long a process has to end by itself when it is told to, and
// a sandbox to take that message.
const stopGrace = 3 * time.Second

// await waits for a process; when the context ends it is ended too. The exit is
// nil when it is not known.
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
	exit *schema.Exit // nil: it is not known how it ended
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

// stop asks the process to end and then makes it, also when the context is
// over. A sandbox that does not answer, since it is frozen or broken, gives an
// error: what runs in it ends when it is closed.
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

// signal sends a signal, if the sandbox takes it at once.
func signal(ctx context.Context, p sandboxes.Process, s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	return p.Signal(ctx, s)
}
