package far

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/line"
)

// stream is one side of a byte stream that outlives the connections which carry it. At most one
// connection carries it at a time: the last one.
type stream struct {
	line *line.Line

	mu    sync.Mutex
	conn  *carrying // nil: no connection carries the stream
	ended bool
}

// carrying is a connection that carries a stream.
type carrying struct {
	queue chan []byte // messages for the other side
	wrote chan struct{}
	cut   func() // breaks the connection
}

// retry is the time after which bytes without an acknowledgement are sent again. A connection
// loses messages by its end, after which the next one sends them, and by a full queue, of which
// the other side tells after the next message.
const retry = 15 * time.Second

// maxQueue bounds the messages that wait for a slow connection. Further ones are dropped.
const maxQueue = 64

// out is the out of the line. It does not block.
func (s *stream) out(message []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return
	}
	select {
	case s.conn.queue <- message:
	default:
	}
}

// take lets a connection carry the stream from now on. The one before writes its last messages
// and ends. It returns false if the stream has ended.
func (s *stream) take(c *carrying) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	if s.conn != nil {
		close(s.conn.queue)
	}
	s.conn = c
	return true
}

// leave ends a connection that no other one has replaced.
func (s *stream) leave(c *carrying) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c {
		close(c.queue)
		s.conn = nil
	}
}

func (s *stream) carriedBy(c *carrying) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == c
}

// wroteTime bounds the wait until the last messages of a stream are written.
const wroteTime = time.Second

// end ends the stream and breaks its connection, after the last messages.
func (s *stream) end() {
	s.mu.Lock()
	c := s.conn
	s.conn, s.ended = nil, true
	if c != nil {
		close(c.queue)
	}
	s.mu.Unlock()
	if c == nil {
		return
	}
	limit := time.NewTimer(wroteTime)
	defer limit.Stop()
	select {
	case <-c.wrote:
	case <-limit.C:
	}
	c.cut()
}

// carry carries the stream over a connection until that breaks, until the other side has said
// nothing for quiet (0: for any time), which silent tells, or until another connection carries it
// or it ends. cut breaks the connection.
func (s *stream) carry(in io.Reader, out io.Writer, quiet time.Duration, cut func()) (silent bool) {
	c := &carrying{make(chan []byte, maxQueue), make(chan struct{}), cut}
	if !s.take(c) {
		cut()
		return false
	}
	go func() {
		defer close(c.wrote)
		defer cut()
		for m := range c.queue {
			if writeMessage(out, m) != nil {
				return
			}
		}
	}()
	s.line.Resend()
	if quiet > 0 {
		silence := time.AfterFunc(quiet, cut)
		defer func() { silent = !silence.Stop() }()
		in = &heard{in, silence, quiet}
	}
	for {
		f, err := readMessage(in)
		if err != nil || !s.carriedBy(c) {
			break
		}
		s.line.Receive(f)
	}
	s.leave(c)
	cut()
	<-c.wrote
	return false
}

// heard restarts a timer with each read.
type heard struct {
	io.Reader
	silence *time.Timer
	quiet   time.Duration
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.silence.Reset(h.quiet)
	}
	return n, err
}

// A message on a connection is four bytes of big-endian length and that many bytes.
func writeMessage(w io.Writer, m []byte) error {
	b := make([]byte, 0, 4+len(m))
	b = binary.BigEndian.AppendUint32(b, uint32(len(m)))
	_, err := w.Write(append(b, m...))
	return err
}

var errLength = errors.New("a message of a stream has a wrong length")

func readMessage(r io.Reader) (f line.Frame, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, fmt.Errorf("read a message of a stream: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > line.MaxMessage {
		return f, errLength
	}
	m := make([]byte, n)
	if _, err := io.ReadFull(r, m); err != nil {
		return f, fmt.Errorf("read a message of a stream: %w", err)
	}
	return line.Decode(m)
}
