package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	farline "github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
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
	conn, theirs, err := farline.Pair()
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx)) // the sandbox outlives its creation
	l := &line{Line: far.Line{Host: h.Host, Conn: conn}, over: make(chan struct{}), stop: stop}
	l.Broken = l.broken
	err = b.fleet.Open(life, m.Machine, m.Instance, b.want, theirs, func(end schema.LineEnd) {
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
	far.Over(ctx, l.over, endTime)
	l.stop()
	<-l.over
}

// broken returns the reason for the end of a line.
func (l *line) broken(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.end(ctx)
	return l.Host.Ended(l.last)
}

// lost returns the reason for the end of a sandbox: an error that wraps
// sandboxes.ErrLost.
func (l *line) lost() error {
	if !far.Over(context.Background(), l.over, endTime) {
		return sandboxes.ErrLost
	}
	if err := far.Lost(l.last.Status); err != nil && l.last.Reason == "" {
		return err
	}
	return fmt.Errorf("%w: %s", sandboxes.ErrLost, l.Host.Ended(l.last).Error())
}
