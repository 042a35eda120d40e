package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// operationTime bounds the wait for the operation on a stream of Relay.
const operationTime = 10 * time.Second

// Relay serves the stream of a Caller in another process that starts a command: it starts
// it in the box to which open opens streams. env has further variables for it, and began
// is called before it starts. All other operations are refused. Relay returns when the
// command has ended, or the stream, which it closes. The exit is nil if the command did
// not run to its end.
//
// The caller gets frames of Relay alone: a sandbox that breaks the box's protocol reaches
// no further than the process of Relay.
func Relay(ctx context.Context, stream net.Conn, open func() (net.Conn, error), env map[string]string, began func(user string, args []string)) (*schema.Exit, error) {
	var run *relayed
	err := relay(ctx, stream, func(ctx context.Context, cmd sandboxes.Cmd) (sandboxes.Process, error) {
		began(cmd.User, cmd.Args)
		all := maps.Clone(env)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, cmd.Env)
		cmd.Env = all
		p, err := Over(func() (net.Conn, error) {
			conn, err := open()
			if err != nil {
				return nil, err
			}
			return &tied{conn, context.AfterFunc(ctx, func() { conn.Close() })}, nil
		}, "").Start(ctx, cmd)
		if err != nil {
			return nil, err
		}
		run = &relayed{Process: p}
		return run, nil
	})
	if run == nil {
		return nil, err
	}
	return run.exit, err
}

// tied is a stream that ends with a context.
type tied struct {
	net.Conn
	forget func() bool // the context
}

func (s *tied) Close() error {
	s.forget()
	return s.Conn.Close()
}

// relayed remembers the exit of a command.
type relayed struct {
	sandboxes.Process
	exit *schema.Exit
}

// Wait implements sandboxes.Process.
func (p *relayed) Wait() (schema.Exit, error) {
	exit, err := p.Process.Wait()
	if err == nil {
		p.exit = &exit
	}
	return exit, err
}

// behind is a writer that holds its bytes back until after the answer, although the command may
// write before.
type behind struct {
	answered <-chan struct{}
	io.Writer
}

func (w *behind) Write(p []byte) (int, error) {
	<-w.answered
	return w.Writer.Write(p)
}

// relay does the work of Relay. The command of start must end with its context.
func relay(ctx context.Context, stream net.Conn, start func(context.Context, sandboxes.Cmd) (sandboxes.Process, error)) error {
	defer stream.Close()
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	in, out := newFrameReader(stream), &frameWriter{w: stream}
	h, err := readHeader(stream, in)
	if err != nil {
		return fmt.Errorf("read an operation: %w", err)
	}
	if h.Op != opExec {
		err := &sandboxes.RefusedError{Operation: h.Op, Reason: "only commands are run here"}
		return errors.Join(err, out.json(frameFail, failure{Code: failRefused, Message: err.Reason}))
	}
	stdin, typed := io.Pipe()
	defer func() { _ = stdin.Close() }() // is always nil
	answered := make(chan struct{})
	cmd := sandboxes.Cmd{
		Args: h.Args, Env: map[string]string{}, Dir: h.Path, User: h.User, Timeout: ms(h.TimeoutMS), OutputLimit: h.Limit,
		Stdin: stdin, Stdout: &behind{answered, out.stream(frameStdout)}, Stderr: &behind{answered, out.stream(frameStderr)},
	}
	for _, v := range h.Env {
		name, value, _ := strings.Cut(v, "=")
		cmd.Env[name] = value
	}
	sizes := make(chan sandboxes.TerminalSize)
	if h.Terminal != nil {
		cmd.Terminal = &sandboxes.Terminal{Size: *h.Terminal, Resized: sizes}
	}
	p, err := start(ctx, cmd)
	if err != nil {
		return errors.Join(err, out.json(frameFail, refusalOf(err)))
	}
	if err := out.json(frameStarted, started{}); err != nil {
		hangUp()
	}
	close(answered)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		defer hangUp()
		take(ctx, in, typed, sizes)
	}()
	exit, err := p.Wait()
	if err != nil {
		err = errors.Join(err, out.json(frameFail, refusalOf(err)))
	} else {
		err = out.json(frameOK, exit)
	}
	hangUp()
	_ = stdin.Close() // is always nil
	stream.Close()
	<-fed
	return err
}

// readHeader reads the first frame of a stream.
func readHeader(stream net.Conn, in *frameReader) (h header, err error) {
	_ = stream.SetReadDeadline(time.Now().Add(operationTime))
	in.limit = maxHeader
	kind, payload, err := in.next()
	in.limit = maxFrame
	if err != nil {
		return h, err
	}
	_ = stream.SetReadDeadline(time.Time{})
	if kind != frameHeader {
		return h, fmt.Errorf("it begins with a frame %q", kind)
	}
	return h, json.Unmarshal(payload, &h)
}

// take passes the input of a command and the sizes of its terminal on until the stream
// or the context ends.
func take(ctx context.Context, in *frameReader, stdin *io.PipeWriter, sizes chan<- sandboxes.TerminalSize) {
	for {
		kind, payload, err := in.next()
		if err != nil {
			_ = stdin.CloseWithError(err) // is always nil
			return
		}
		switch kind {
		case frameData:
			_, _ = stdin.Write(payload) // of a command that reads no more it is lost
		case frameEOF:
			_ = stdin.Close() // is always nil
		case frameResize:
			size, ok := decodeSize(payload)
			if !ok {
				continue
			}
			select {
			case sizes <- size:
			case <-ctx.Done():
			}
		}
	}
}

// refusalOf describes an error of package sandboxes, as failed reads it.
func refusalOf(err error) failure {
	f := failure{Code: failOther, Message: schema.Clip(err.Error(), maxMessage)}
	var command *sandboxes.NoCommandError
	var user *sandboxes.NoUserError
	switch {
	case errors.As(err, &user):
		f = failure{Code: failNoUser, Arg: schema.Clip(user.User, maxMessage), Message: schema.Clip(user.Reason, maxMessage)}
	case errors.As(err, &command):
		f = failure{Code: failNoCommand, Arg: schema.Clip(command.Arg, maxMessage), Message: schema.Clip(command.Reason, maxMessage)}
	}
	return f
}
