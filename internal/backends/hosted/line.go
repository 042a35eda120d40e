package hosted

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/plain"
)

// Line is a process in a machine, which can carry a far.Lasting. Its standard input and output
// are the other end of the connection.
type Line struct {
	far.Line
	machine *Machine
	process Process
	says    *far.Head
	cancel  context.CancelCauseFunc
	over    chan struct{}

	end    string // of the process; valid after over, if the stream did not break
	broke  error  // valid after over; nil: the process ended
	theirs net.Conn
}

// start starts a shell script.
func (m *Machine) start(ctx context.Context, script string) (*Line, error) {
	conn, theirs, err := far.Conns()
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // the sandbox outlives its creation
	l := &Line{Line: far.Line{Host: m.Host, Conn: conn}, machine: m, process: m.Process(), says: &far.Head{}, cancel: cancel, over: make(chan struct{}), theirs: theirs}
	l.Broken = l.broken
	go l.run(life, script)
	return l, nil
}

// run carries the bytes of the process until it or the stream ends.
func (l *Line) run(ctx context.Context, script string) {
	defer close(l.over)
	defer l.cancel(nil)
	defer l.theirs.Close()
	stopped := make(chan struct{})
	defer func() { <-stopped }()
	go func() { // ends the stream with the machine
		defer close(stopped)
		select {
		case <-l.machine.over:
			l.cancel(l.machine.why)
		case <-ctx.Done():
		}
	}()
	defer l.cancel(nil)
	l.end, l.broke = l.receive(ctx, script)
}

// receive starts the process and writes its output to the connection.
func (l *Line) receive(ctx context.Context, script string) (string, error) {
	pumped := make(chan struct{})
	started := false
	defer func() {
		_ = l.theirs.Close() // it ends send
		l.cancel(nil)
		if started {
			<-pumped
		}
	}()
	end, err := l.process.Run(ctx, script, Streams{
		Started: func() error {
			if started {
				return errors.New("the process starts twice")
			}
			started = true
			go func() {
				defer close(pumped)
				l.send(ctx)
			}()
			return nil
		},
		Output: func(data []byte) {
			if len(data) > 0 {
				_, _ = l.theirs.Write(data) // the worker may have closed its end; the end of the process still counts
			}
		},
		Errors: func(data []byte) { _, _ = l.says.Write(data) },
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return end, err
}

// Bounds of one input.
const (
	maxInput = 256 << 10
	sendTime = time.Minute
)

// lastTime is the time that Run has after an input that failed: a process that has ended
// takes none, and its end is the better reason.
const lastTime = 5 * time.Second

// gather is the time for which send waits for more bytes: a message of the box is written
// in two parts, and each call is a way there and back.
const gather = time.Millisecond

// send carries bytes from the connection to the process. One call is under way at a
// time, so the bytes keep their order. A call that fails ends the line.
func (l *Line) send(ctx context.Context) {
	buf := make([]byte, maxInput)
	for {
		_ = l.theirs.SetReadDeadline(time.Time{})
		n, err := l.theirs.Read(buf)
		for err == nil && n < len(buf) {
			_ = l.theirs.SetReadDeadline(time.Now().Add(gather))
			var more int
			more, err = l.theirs.Read(buf[n:])
			n += more
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		if n > 0 {
			call, done := context.WithTimeoutCause(ctx, sendTime, fmt.Errorf("the process takes no input for %s", sendTime))
			serr := l.process.Input(call, buf[:n])
			done()
			if serr != nil {
				_ = Sleep(ctx, lastTime)                              // Run's end ends the context
				l.cancel(fmt.Errorf("send to the process: %w", serr)) // no effect after it
				return
			}
		}
		if err != nil { // the other end is closed
			return
		}
	}
}

// Stream implements far.Carrier.
func (l *Line) Stream() net.Conn { return l.Conn }

// Why implements far.Carrier.
func (l *Line) Why(ctx context.Context) error { return l.broken(ctx) }

// End implements far.Carrier. The process ends with the next connection to its line, or with the
// machine.
func (l *Line) End(ctx context.Context) {
	_ = l.Conn.Close()
	l.cancel(errors.New("it was closed"))
	far.Over(ctx, l.over, endTime)
}

// endTime bounds the wait for the end of a stream after the end of its output.
const endTime = 20 * time.Second

// broken returns the reason for the end of a line, or the context's cause.
func (l *Line) broken(ctx context.Context) error {
	over := far.Over(ctx, l.over, endTime)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !over {
		return fmt.Errorf("%s: the stream ended", l.Host.Called)
	}
	why := l.broke
	if why == nil {
		return fmt.Errorf("%s: the command there ended with %s: %s", l.Host.Called, plain.Line(l.end, 200), l.says)
	}
	if gone := l.machine.ended(ctx); gone != nil {
		why = gone
	}
	return fmt.Errorf("%s: the stream broke: %s", l.Host.Called, plain.Line(why.Error(), far.MaxSays))
}
