package far

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/schema"
)

// outliving is Serve's side of a Lasting line.
type outliving struct {
	stream   stream
	conn     net.Conn // the orders, and then the bytes of the box
	listener net.Listener
	path     string // of the listener's socket
	exit     chan schema.LineEnd
	over     chan struct{}
}

// saidGone is the first line of Serve with AttachFlag, after its mark, if nothing has the name.
const saidGone = "gone"

// linesFolder has folders with a socket for each line that outlives its connection.
const linesFolder = "lines"

// linesOf is the folder of the lines of this host since its start: hosts may share a home.
func linesOf(folder string) (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the id of this host: %w", err)
	}
	return filepath.Join(folder, linesFolder, filepath.Base(strings.TrimSpace(string(id)))), nil
}

// socketIn calls f with a path to a socket, which is short enough for each folder.
func socketIn(lines, name string, f func(path string) error) error {
	dir, err := os.Open(lines)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name))
}

// last makes the line outlive its connection, and answers the order.
func (s *server) last(ctx context.Context, o *last) error {
	l, err := s.outlive(ctx, o)
	if err != nil {
		return s.answer(failed(err))
	}
	if err := s.answer(answer{}); err != nil {
		l.hide()
		return err
	}
	in, out := s.in, s.out
	go l.stream.carry(in, out, 0, func() {}) // it ends with the process at the latest
	s.in, s.out, s.lasts = bufio.NewReader(l.conn), l.conn, l
	return nil
}

func (s *server) outlive(ctx context.Context, o *last) (*outliving, error) {
	if s.lasts != nil {
		return nil, errors.New("the line outlives its connection already")
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	lines, err := linesOf(s.folder)
	if err == nil {
		err = os.MkdirAll(lines, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("keep the line: %w", err)
	}
	l := &outliving{path: filepath.Join(lines, o.Name), exit: make(chan schema.LineEnd, 1), over: make(chan struct{})}
	err = socketIn(lines, o.Name, func(path string) (err error) {
		l.listener, err = net.Listen("unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("keep the line: %w", err)
	}
	l.listener.(*net.UnixListener).SetUnlinkOnClose(false) // the path is not that of the file
	conn, local, err := Conns()
	if err != nil {
		l.hide()
		return nil, err
	}
	l.conn = conn
	l.stream.line = line.New(local, line.Timing{Beat: o.Beat, Silence: o.Silence, Retry: retry}, l.stream.out)
	go l.accept()
	go func() {
		defer close(l.over)
		l.stream.line.Run(ctx, func() schema.LineEnd { return <-l.exit })
		l.hide()
		l.stream.end()
	}()
	return l, nil
}

// hide ends the way for new connections.
func (l *outliving) hide() {
	_ = l.listener.Close() // nobody waits for it
	_ = os.Remove(l.path)  // it may be gone
}

// firstByteTime is the time after which a new connection without a byte has lost its worker.
const firstByteTime = time.Minute

// accept lets each new connection carry the line, from its first byte on: removeLines sends none.
func (l *outliving) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			in := bufio.NewReader(conn)
			_ = conn.SetReadDeadline(time.Now().Add(firstByteTime)) // without it the wait has no end
			if _, err := in.Peek(1); err != nil {
				conn.Close()
				return
			}
			_ = conn.SetReadDeadline(time.Time{})
			l.stream.carry(in, conn, 0, func() { _ = conn.Close() })
		}()
	}
}

// finish tells the worker the exit status of the process, and waits until it has heard it or is
// silent.
func (l *outliving) finish(code int) {
	l.exit <- schema.LineEnd{Status: code}
	_ = l.conn.Close() // the worker may have closed the other end
	<-l.over
}

const (
	// youngLine is the age below which a socket may not listen yet.
	youngLine = time.Minute
	// oldLines is the age without a change above which no line of a folder lives: that of an
	// earlier start of this host looks like that of another host with this home.
	oldLines = 90 * 24 * time.Hour
)

// removeLines removes the sockets of processes that were killed, and old folders of earlier
// starts and other hosts.
func (s *server) removeLines(now time.Time) {
	lines, err := linesOf(s.folder)
	if err != nil {
		return
	}
	folders, _ := os.ReadDir(filepath.Dir(lines)) // without a line there is none
	for _, folder := range folders {
		info, err := folder.Info()
		if err == nil && folder.Name() != filepath.Base(lines) && now.Sub(info.ModTime()) > oldLines {
			_ = os.RemoveAll(filepath.Join(filepath.Dir(lines), folder.Name())) // the next sweep tries again
		}
	}
	sockets, _ := os.ReadDir(lines) // without one there is no folder
	for _, socket := range sockets {
		info, err := socket.Info()
		if err != nil || now.Sub(info.ModTime()) < youngLine {
			continue
		}
		conn, err := dialLine(lines, socket.Name())
		if err == nil {
			conn.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(filepath.Join(lines, socket.Name())) // another sweep may have removed it
		}
	}
}

func dialLine(lines, name string) (conn net.Conn, err error) {
	err = socketIn(lines, name, func(path string) (err error) {
		conn, err = net.Dial("unix", path)
		return err
	})
	return conn, err
}

// attach connects standard input and output to the line with this name. It returns the
// process's exit code.
func attach(folder, name string) int {
	lines, err := linesOf(folder)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	conn, err := dialLine(lines, name)
	if errors.Is(err, fs.ErrNotExist) {
		others, _ := filepath.Glob(filepath.Join(folder, linesFolder, "*", name))
		if len(others) > 0 {
			fmt.Fprintln(os.Stderr, "the process of the line is on another host with this home, or was on this one before it started again")
			return 1
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		fmt.Println(Mark + saidGone)
		return 1
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reach the process of the line:", err)
		return 1
	}
	defer conn.Close()
	fmt.Println(Mark + Ready)
	over := make(chan struct{}, 2) // this connection broke at one end; the line stays
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		over <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(os.Stdout, conn)
		over <- struct{}{}
	}()
	<-over
	return 0
}
