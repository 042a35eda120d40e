package main

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/internal/rollout"
	"github.com/turngate/turngate/sandboxes"
)

// seat is the place of a person: the streams of this process.
type seat struct {
	out, err io.Writer
	stdin    io.Reader
	keys     chan []byte   // the typed keys; closed at the end of the input
	closed   chan struct{} // no run reads any more
	wake     *os.File      // its end wakes the reader of a file; nil: stdin is none
	screen   int           // descriptor of the terminal; below 0: stdin is none

	mu      sync.Mutex
	restore func() // of the terminal, while it is raw; nil: it is not
}

func newSeat(in io.Reader, out, errs io.Writer) *seat {
	s := &seat{out: out, err: errs, stdin: in, keys: make(chan []byte), closed: make(chan struct{}), screen: -1}
	if f, ok := in.(*os.File); ok {
		if isTerminal(f) {
			s.screen = int(f.Fd())
		}
		if woken, wake, err := os.Pipe(); err == nil {
			s.wake, s.stdin = wake, &wakeful{f, woken}
		}
	}
	go s.read()
	return s
}

// close restores the terminal, also when a run has not ended, and takes no more keys.
func (s *seat) close() {
	close(s.closed)
	if s.wake != nil {
		s.wake.Close()
	}
	s.cook()
}

// wakeful reads a file until the other end of a pipe is closed. A read of the file alone
// would go on in a process that outlives its command, and take keys from the next one.
type wakeful struct{ file, woken *os.File }

func (w *wakeful) Read(p []byte) (int, error) {
	for {
		ready := []unix.PollFd{{Fd: int32(w.file.Fd()), Events: unix.POLLIN}, {Fd: int32(w.woken.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
		_, err := unix.Poll(ready, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case ready[1].Revents != 0:
			w.woken.Close()
			return 0, os.ErrClosed
		default:
			return w.file.Read(p)
		}
	}
}

// read reads the input for all runs, since a run that has ended must not take the keys
// of the next.
func (s *seat) read() {
	defer close(s.keys)
	for {
		b := make([]byte, 4096)
		n, err := s.stdin.Read(b)
		if n > 0 {
			select {
			case s.keys <- b[:n]:
			case <-s.closed:
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && s.screen >= 0: // Ctrl-D while the terminal is not raw
			select {
			case <-time.After(50 * time.Millisecond):
			case <-s.closed:
				return
			}
		default:
			return
		}
	}
}

// forget drops the keys that were typed before a run.
func (s *seat) forget() {
	_ = kernel.DropInput(s.screen)
	select {
	case <-s.keys:
	default:
	}
}

// cook restores the terminal, if it is raw.
func (s *seat) cook() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restore != nil {
		s.restore()
		s.restore = nil
	}
}

// begin begins a run of the person. A terminal is raw until its end.
func (s *seat) begin() (rollout.Streams, func()) {
	if s.screen >= 0 {
		s.forget()
	}
	in, typed := io.Pipe()
	over := make(chan struct{})
	go func() {
		defer func() { _ = typed.Close() }() // is always nil
		for {
			select {
			case <-over:
				return
			case b, ok := <-s.keys:
				if !ok {
					return
				}
				if _, err := typed.Write(b); err != nil {
					return
				}
			}
		}
	}()
	run := rollout.Streams{Stdin: in, Stdout: s.out, Stderr: s.err}
	if s.screen >= 0 {
		run.Terminal = s.raw()
	}
	return run, func() {
		close(over)
		_ = in.Close() // is always nil
		s.cook()
	}
}

// raw passes every key and the sizes of this terminal on, until cook is called.
func (s *seat) raw() *sandboxes.Terminal {
	size := func() (t sandboxes.TerminalSize) {
		if cols, rows, err := term.GetSize(s.screen); err == nil {
			t.Rows, t.Cols = uint16(rows), uint16(cols) //nolint:gosec // the kernel has 16 bits for each
		}
		return t
	}
	sizes, changed, over := make(chan sandboxes.TerminalSize), make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changed, unix.SIGWINCH)
	go func() {
		for {
			select {
			case <-over:
				return
			case <-changed:
				select {
				case sizes <- size():
				case <-over:
					return
				}
			}
		}
	}()
	before, err := term.MakeRaw(s.screen)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restore = func() {
		signal.Stop(changed)
		close(over)
		if err == nil {
			_ = term.Restore(s.screen, before)
		}
	}
	return &sandboxes.Terminal{Size: size(), Resized: sizes}
}
