package far

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Carrier is a connection to a process on a host: to Serve, or to one that Attach started.
type Carrier interface {
	// Stream is the process's input and output.
	Stream() net.Conn
	// End breaks the connection and waits until the process has ended, for a while at most.
	End(ctx context.Context)
	// Why returns the reason for the end of the connection.
	Why(ctx context.Context) error
}

// ErrGone is the error of an attempt to attach to a process that has ended.
var ErrGone = errors.New("its process there has ended")

// Attached returns an error unless a process with AttachFlag says by its first line that it is
// connected.
func Attached(said string) error {
	switch said {
	case Ready:
		return nil
	case saidGone:
		return ErrGone
	}
	return fmt.Errorf("it answers %q", plain.Line(said, MaxSays))
}

// Lasting is a Line that outlives its connection: while no connection carries it, both sides
// keep their bytes.
type Lasting struct {
	Line
	stream  stream
	stop    context.CancelCauseFunc
	over    chan struct{}
	end     schema.LineEnd // valid after over
	carried chan struct{}  // closed when no connection is left

	mu    sync.Mutex
	broke error // the reason for the end of the last connection; nil: it has not ended
}

const (
	// quietBeats is the number of beats without a message after which a connection is given up.
	quietBeats = 3
	// againPause is the first pause after an attempt to connect again that failed,
	// maxAgainPause the longest.
	againPause    = 200 * time.Millisecond
	maxAgainPause = 3 * time.Second
	// carrierTime bounds the wait for the end of a connection that broke.
	carrierTime = 2 * time.Second
	// lastTime bounds the wait for the other side's end.
	lastTime = 20 * time.Second
)

// Last makes a line to Serve outlive its connection, which is the first one. again connects to
// the process of this name, by Attach, and has a bound of time. The line is over when the other
// side has been silent for t.Silence.
func (l *Line) Last(ctx context.Context, t line.Timing, first Carrier, again func(ctx context.Context, name string) (Carrier, error)) (*Lasting, error) {
	name := line.NewName()
	if _, err := l.ask(ctx, order{Last: &last{Name: name, Beat: t.Beat, Silence: t.Silence}}); err != nil {
		return nil, err
	}
	conn, local, err := Conns()
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx)) // the sandbox outlives its creation
	k := &Lasting{Line: Line{Host: l.Host, Conn: conn}, stop: stop, over: make(chan struct{}), carried: make(chan struct{})}
	k.Broken = k.broken
	t.Retry = retry
	k.stream.line = line.New(local, t, k.stream.out)
	go func() {
		defer close(k.carried)
		k.carry(life, quietBeats*t.Beat, first, func(ctx context.Context) (Carrier, error) { return again(ctx, name) })
	}()
	go func() {
		k.end = k.stream.line.Run(life, func() schema.LineEnd { return schema.LineEnd{} })
		close(k.over)
		stop(nil)
		k.stream.end()
	}()
	return k, nil
}

// carry carries the line over one connection after the other, until its end.
func (k *Lasting) carry(life context.Context, quiet time.Duration, c Carrier, again func(context.Context) (Carrier, error)) {
	for {
		conn := c.Stream()
		silent := k.stream.carry(conn, conn, quiet, func() { _ = conn.Close() })
		limited, cancel := context.WithTimeout(context.WithoutCancel(life), carrierTime)
		c.End(limited)
		cancel()
		if life.Err() != nil {
			return
		}
		why := fmt.Errorf("%s: nothing was heard for %s", k.Host.Called, quiet)
		if !silent {
			why = c.Why(life)
		}
		k.note(why)
		for pause := againPause; ; pause = min(2*pause, maxAgainPause) {
			next, err := again(life)
			if err == nil {
				k.note(nil)
				c = next
				break
			}
			if life.Err() != nil {
				return
			}
			if errors.Is(err, ErrGone) {
				k.stream.line.Gone(err.Error())
				return
			}
			k.note(err)
			select {
			case <-time.After(pause):
			case <-life.Done():
				return
			}
		}
	}
}

func (k *Lasting) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broke = err
}

// End closes the line and waits until the other side has ended its sandbox, for lastTime at
// most.
func (k *Lasting) End(ctx context.Context) {
	_ = k.Conn.Close()
	Over(ctx, k.over, lastTime)
	k.stop(errClosed)
	<-k.over
	<-k.carried
}

var errClosed = errors.New("it was closed")

// broken returns the reason for the end of the line, or the context's cause.
func (k *Lasting) broken(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k.End(ctx)
	return k.reason()
}

// reason is that of a line that is over.
func (k *Lasting) reason() error {
	err := k.Host.Ended(k.end)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broke != nil && k.end.Reason != "" {
		return fmt.Errorf("%w; its connection: %w", err, k.broke)
	}
	return err
}

// Lost returns the reason for the end of a sandbox: an error that wraps sandboxes.ErrLost.
func (k *Lasting) Lost() error {
	if !Over(context.Background(), k.over, lastTime) {
		return sandboxes.ErrLost
	}
	if err := Lost(k.end.Status); err != nil && k.end.Reason == "" {
		return err
	}
	return fmt.Errorf("%w: %s", sandboxes.ErrLost, k.reason().Error())
}
