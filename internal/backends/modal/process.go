package modal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/turngate/turngate/internal/backends/hosted"
)

// machine is a sandbox of Modal.
type machine struct{ sandbox *modal.Sandbox }

// Process implements hosted.Remote.
func (m *machine) Process() hosted.Process {
	return &process{sandbox: m.sandbox, over: make(chan struct{})}
}

// goneTime bounds a look at the state of a sandbox.
const goneTime = 20 * time.Second

// exitTimeout is the status of a sandbox in Modal's client after the end of its life.
const exitTimeout = 124

// Gone implements hosted.Remote.
func (m *machine) Gone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, goneTime)
	defer cancel()
	code, err := m.sandbox.Poll(ctx, nil)
	switch err = refused(ctx, err); {
	case hosted.IsGone(err):
		return errors.New("there is no such sandbox at Modal any more")
	case err != nil || code == nil:
		return nil
	case *code == exitTimeout:
		return errors.New("its life at Modal was over")
	}
	return fmt.Errorf("it was ended at Modal, with the status %d", *code)
}

// Bounds of an upload.
const (
	uploadTime = 10 * time.Minute
	uploadPart = 1 << 20
)

// putScript stores its input under the path that is its argument.
const putScript = `umask 077; mkdir -p "$(dirname "$1")" && cat >"$1"`

// Put implements hosted.Remote.
func (m *machine) Put(ctx context.Context, file, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTime, fmt.Errorf("turngate did not arrive within %s", uploadTime))
	defer cancel()
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	exec, err := m.sandbox.Exec(ctx, []string{"/bin/sh", "-c", putScript, "sh", path}, nil)
	if err != nil {
		return fmt.Errorf("send turngate: %w", refused(ctx, err))
	}
	for part := make([]byte, uploadPart); ; {
		n, err := io.ReadFull(f, part)
		if n > 0 {
			if err := write(ctx, exec, part[:n]); err != nil {
				return fmt.Errorf("send turngate: %w", err)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read turngate's own program: %w", err)
		}
	}
	if err := within(ctx, exec.Stdin.Close); err != nil {
		return fmt.Errorf("send turngate: %w", err)
	}
	code, err := exec.Wait(ctx, nil)
	if err != nil {
		return fmt.Errorf("send turngate: %w", refused(ctx, err))
	}
	if code != 0 {
		return fmt.Errorf("send turngate: the command that stores it ended with the exit status %d", code)
	}
	return nil
}

// process is a command in a sandbox. Modal keeps its output, and counts the bytes of its
// input: after a broken connection the client goes on at the first byte that is missing.
type process struct {
	sandbox *modal.Sandbox
	exec    *modal.ContainerProcess // valid after Started
	over    chan struct{}           // closed at the end of Run
}

// Bounds of the end of a command, after the end of its output.
const (
	exitTime   = 10 * time.Second // until its exit status has come
	errorsTime = time.Second      // from then on, until its errors have ended
)

// Run implements hosted.Process.
func (p *process) Run(ctx context.Context, script string, to hosted.Streams) (string, error) {
	defer close(p.over)
	var err error
	if p.exec, err = p.sandbox.Exec(ctx, []string{"/bin/sh", "-c", script}, nil); err != nil {
		return "", refused(ctx, err)
	}
	if err := to.Started(); err != nil {
		return "", err
	}
	var turn sync.Mutex // the calls of to do not overlap
	one := func(deliver func([]byte)) func([]byte) {
		return func(data []byte) {
			turn.Lock()
			defer turn.Unlock()
			deliver(data)
		}
	}
	said := make(chan struct{})
	defer func() { <-said }()
	defer p.exec.Stderr.Close()
	go func() {
		defer close(said)
		_ = read(p.exec.Stderr, one(to.Errors)) // the output tells whether the stream broke
	}()
	// The client's reads have no context.
	defer context.AfterFunc(ctx, func() { _ = p.exec.Stdout.Close() })()
	defer p.exec.Stdout.Close()
	if err := read(p.exec.Stdout, one(to.Output)); err != nil {
		return "", refused(ctx, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, exitTime, fmt.Errorf("its output has ended, and no exit status came within %s", exitTime))
	defer cancel()
	code, err := p.exec.Wait(ctx, nil)
	if err != nil {
		return "", refused(ctx, err)
	}
	select { // a process that it left may hold its errors open
	case <-said:
	case <-time.After(errorsTime):
	}
	return fmt.Sprintf("exit status %d", code), nil
}

// read delivers the bytes of a stream until its end.
func read(from io.Reader, deliver func([]byte)) error {
	for buf := make([]byte, 32<<10); ; {
		n, err := from.Read(buf)
		if n > 0 {
			deliver(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Input implements hosted.Process. A command that has ended refuses it: then Run has the
// reason, and its error must not come first.
func (p *process) Input(ctx context.Context, data []byte) error {
	err := write(ctx, p.exec, data)
	var no *hosted.RefusedError
	if errors.As(err, &no) && !hosted.MayHave(err) {
		select {
		case <-p.over:
		case <-time.After(exitTime):
		case <-ctx.Done():
		}
	}
	return err
}

// write writes to a command. After an error data belongs to the client until its call ends,
// since that has no context.
func write(ctx context.Context, to *modal.ContainerProcess, data []byte) error {
	return within(ctx, func() error {
		_, err := to.Stdin.Write(data)
		return err
	})
}

// within waits for a call of the client, or for the end of the context. The client itself
// gives up a call after a silence of its connection.
func within(ctx context.Context, call func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return refused(ctx, err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
