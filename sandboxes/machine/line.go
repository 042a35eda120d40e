package machine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/far"
	"github.com/turngate/turngate/schema"
)

// line is a line to far.Serve on a machine.
type line struct {
	far.Line
	over chan struct{}
	last schema.LineEnd // valid after over
	stop context.CancelFunc
}

// openTime bounds the wait for the first answer of a machine. endTime bounds the wait
// for its end.
const (
	openTime = 30 * time.Second
	endTime  = 20 * time.Second
)

// dial opens a line to a machine.
func (b *Backend) dial(ctx context.Context, m *schema.Machine, h *host) (*line, error) {
	conn, theirs, err := far.Pair()
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx)) // the sandbox outlives its creation
	l := &line{Line: far.Line{Host: h.Host, Conn: conn}, over: make(chan struct{}), stop: stop}
	l.Broken = l.broken
	err = b.fleet.Open(life, m.Machine, m.Instance, schema.CanSandbox, theirs, func(end schema.LineEnd) {
		l.last = end
		close(l.over)
	})
	if err != nil {
		stop()
		_ = conn.Close() // nothing was sent
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, openTime, fmt.Errorf("%s: no answer within %s", h.Called, openTime))
	defer cancel()
	said, err := l.Marked(limited)
	if err == nil && limited.Err() != nil { // the end of the context may have set a deadline
		err = context.Cause(limited)
	}
	if err == nil && said != far.Ready {
		err = fmt.Errorf("%s answers %q", h.Called, plain.Line(said, far.MaxSays))
	}
	if err != nil {
		l.end(limited)
		return nil, err
	}
	return l, nil
}

// end closes the line and waits until the machine has ended its process, for endTime
// at most.
func (l *line) end(ctx context.Context) {
	_ = l.Conn.Close()
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	select {
	case <-l.over:
	case <-limit.C:
	case <-ctx.Done():
	}
	l.stop()
	<-l.over
}

// broken returns the reason for the end of a line.
func (l *line) broken(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.end(ctx)
	return l.reason()
}

func (l *line) reason() error {
	text := plain.Line(l.last.Text, far.MaxSays)
	if l.last.Reason == "" {
		return fmt.Errorf("%s: its process ended with exit status %d: %s", l.Host.Called, l.last.Status, text)
	}
	if l.last.Reason == schema.LineUnsupported {
		return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: l.Host.Backend, Reason: "on " + l.Host.Called + ": " + text}
	}
	return fmt.Errorf("%s: the line ended: %s", l.Host.Called, cmp.Or(text, plain.Line(l.last.Reason, far.MaxSays)))
}

// lost returns the reason for the end of a sandbox: an error that wraps
// sandboxes.ErrLost.
func (l *line) lost() error {
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	select {
	case <-l.over:
	case <-limit.C:
		return sandboxes.ErrLost
	}
	if err, ok := far.Lost(l.last.Status); ok && l.last.Reason == "" {
		return err
	}
	return fmt.Errorf("%w: %s", sandboxes.ErrLost, l.reason().Error())
}
