package box

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// copied is a command that writes its input, until its context ends.
type copied struct {
	done chan struct{}
	err  error
}

func (p *copied) Wait() (schema.Exit, error) {
	<-p.done
	return schema.Exit{Code: 3}, p.err
}

func (*copied) Signal(context.Context, os.Signal) error { return nil }

// relayedTo returns a Caller. relay serves its streams with commands of copied.
func relayedTo(t *testing.T, refused error) (c *Caller, over <-chan error) {
	t.Helper()
	ended := make(chan error, 1)
	return Over(func() (net.Conn, error) {
		ours, theirs := pair(t)
		go func() {
			ended <- relay(t.Context(), theirs, func(ctx context.Context, cmd sandboxes.Cmd) (sandboxes.Process, error) {
				if refused != nil {
					return nil, refused
				}
				p := &copied{done: make(chan struct{})}
				go func() {
					defer close(p.done)
					_, _ = io.WriteString(cmd.Stdout, strings.Join(cmd.Args, " ")+cmd.Env["A"]+cmd.Dir+cmd.User+": ")
					var resized sync.WaitGroup
					if cmd.Terminal != nil {
						resized.Go(func() { // a size may come behind all of the input
							select {
							case size := <-cmd.Terminal.Resized:
								_, _ = cmd.Stderr.Write(encodeSize(size))
							case <-ctx.Done():
							}
						})
					}
					_, _ = io.Copy(cmd.Stdout, cmd.Stdin)
					resized.Wait()
					p.err = context.Cause(ctx)
				}()
				return p, nil
			})
		}()
		return ours, nil
	}, ""), ended
}

func TestACommandIsRelayed(t *testing.T) {
	c, over := relayedTo(t, nil)
	var out, errs strings.Builder
	sizes := make(chan sandboxes.TerminalSize, 1)
	sizes <- sandboxes.TerminalSize{Rows: 0x4142, Cols: 0x4344}
	cmd := sandboxes.Cmd{Args: []string{"a", "b"}, Env: map[string]string{"A": "c"}, Dir: "/d", User: "e", Stdin: strings.NewReader(strings.Repeat("x", 1<<20)), Stdout: &out, Stderr: &errs, Terminal: &sandboxes.Terminal{Resized: sizes}}
	p, err := c.Start(t.Context(), cmd)
	harness.Must(t, err)
	exit, err := p.Wait()
	if err != nil || exit.Code != 3 || out.String() != "a bc/de: "+strings.Repeat("x", 1<<20) || errs.String() != "ABCD" {
		t.Errorf("%+v, %v, %d bytes, %q", exit, err, out.Len(), errs.String())
	}
	harness.Must(t, <-over)
}

// The operations of a box other than a command are refused, and a stream that ends early
// ends the command.
func TestOnlyCommandsAreRelayed(t *testing.T) {
	c, over := relayedTo(t, nil)
	var refused *sandboxes.RefusedError
	if err := c.KillAll(t.Context()); !errors.As(err, &refused) || !errors.As(<-over, &refused) {
		t.Errorf("kill all: %v", err)
	}
	if _, err := sandboxes.ReadFile(t.Context(), c.Files(), "/etc/shadow", 10); !errors.As(err, &refused) || !errors.As(<-over, &refused) {
		t.Errorf("read: %v", err)
	}
	c, over = relayedTo(t, &sandboxes.NoCommandError{Arg: "x", Reason: "it is not there"})
	var none *sandboxes.NoCommandError
	if _, err := c.Start(t.Context(), sandboxes.Cmd{Args: []string{"x"}}); !errors.As(err, &none) || none.Arg != "x" {
		t.Errorf("no command: %v", err)
	}
	if err := <-over; !errors.As(err, &none) {
		t.Error(err)
	}
	c, over = relayedTo(t, nil)
	var stream net.Conn
	hangs := Over(func() (net.Conn, error) {
		conn, err := c.Stream()
		stream = conn
		return conn, err
	}, "")
	input, _ := io.Pipe()
	p, err := hangs.Start(t.Context(), sandboxes.Cmd{Args: []string{"x"}, Stdin: input})
	harness.Must(t, err)
	stream.Close()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("after the stream: %v", err)
	}
	if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) {
		t.Error(err)
	}
	input.Close()
}
