package box

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/turngate/turngate/sandboxes"
)

// forwarded is the result of the forward operation.
type forwarded struct {
	Port int `json:"port"`
}

// maxCarried is how many connections at once are carried to the worker, far
// above what agents open; an agent that opens more gets them closed.
const maxCarried = 256

// forward listens on loopback and carries each connection to the worker. From
// the box to the worker bytes travel in frames, so that the box can also say
// how much of the answer it has written to the agent's socket.
func (s *server) forward() (forwarded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return forwarded{}, fmt.Errorf("there is a forward already")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return forwarded{}, fmt.Errorf("listen on loopback: %w", err)
	}
	s.listener = l
	open := make(chan struct{}, maxCarried)
	go func() {
		for {
			agent, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case open <- struct{}{}:
			default:
				agent.Close()
				continue
			}
			go func() {
				defer func() { <-open }()
				s.carry(agent)
			}()
		}
	}()
	return forwarded{Port: l.Addr().(*net.TCPAddr).Port}, nil
}

func (s *server) carry(agent net.Conn) {
	defer agent.Close()
	stream, err := s.session.Open()
	if err != nil {
		return
	}
	defer stream.Close()
	out := &frameWriter{w: stream}
	// Held over a write and its ack: an agent that reads its answer and hangs
	// up at once must not be heard to hang up before the ack is sent.
	var delivering sync.Mutex
	go func() {
		_, err := io.Copy(out.stream(frameData), agent)
		delivering.Lock()
		defer delivering.Unlock()
		_ = out.write(frameEOF, nil)
		if err != nil {
			stream.Close()
		}
	}()
	buf, ack, total := make([]byte, chunk), make([]byte, 8), uint64(0)
	for {
		n, err := stream.Read(buf)
		if n > 0 {
			delivering.Lock()
			_, werr := agent.Write(buf[:n])
			if werr == nil {
				total += uint64(n)
				binary.BigEndian.PutUint64(ack, total)
				werr = out.write(frameAck, ack)
			}
			delivering.Unlock()
			if werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// forwardConn is the worker's end of one carried connection: writes go
// straight to the box, what comes back is taken apart by a goroutine of its
// own and read through a pipe.
type forwardConn struct {
	net.Conn // the stream to the box
	in, out  net.Conn

	mu       sync.Mutex
	written  uint64
	acked    uint64
	boundary uint64 // written at the end of the last response
	settled  func(bool)
	idle     bool // the response is complete
	broken   bool // the agent's socket is gone
}

func newForwardConn(c net.Conn) *forwardConn {
	f := &forwardConn{Conn: c}
	f.out, f.in = net.Pipe()
	go f.receive()
	return f
}

// receive takes frames apart until the stream ends.
func (c *forwardConn) receive() {
	frames := newFrameReader(c.Conn)
	for {
		kind, payload, err := frames.next()
		if err != nil {
			break
		}
		switch kind {
		case frameData:
			_, _ = c.in.Write(payload) // fails when nobody reads any more; acks still count
		case frameEOF:
			_ = c.in.Close()
			c.settle(func() { c.broken = true })
		case frameAck:
			if len(payload) == 8 {
				c.settle(func() { c.acked = binary.BigEndian.Uint64(payload) })
			}
		}
	}
	_ = c.in.Close()
	c.settle(func() { c.broken = true })
}

func (c *forwardConn) Read(p []byte) (int, error)        { return c.out.Read(p) }
func (c *forwardConn) SetReadDeadline(t time.Time) error { return c.out.SetReadDeadline(t) }
func (c *forwardConn) SetDeadline(t time.Time) error {
	return errors.Join(c.out.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *forwardConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	c.written += uint64(n)
	c.mu.Unlock()
	return n, err
}

// Close closes this end; the box writes what is under way and says how much of
// it arrived.
func (c *forwardConn) Close() error {
	c.responded()
	_ = c.out.Close()
	return c.Conn.Close()
}

// OnSettled implements sandboxes.Delivery.
func (c *forwardConn) OnSettled(f func(bool)) {
	c.mu.Lock()
	before := c.settled
	c.settled, c.idle = f, false
	c.mu.Unlock()
	if before != nil {
		before(true) // whoever asks again on this connection has read the last answer
	}
}

// responded marks that the response is wholly written.
func (c *forwardConn) responded() {
	c.settle(func() { c.idle, c.boundary = true, c.written })
}

// settle changes what is known and tells once it is clear how the response
// ended.
func (c *forwardConn) settle(change func()) {
	c.mu.Lock()
	change()
	f, delivered := c.settled, c.acked >= c.boundary
	if f == nil || !c.idle || !delivered && !c.broken {
		c.mu.Unlock()
		return
	}
	c.settled = nil
	c.mu.Unlock()
	f(delivered)
}

// serveForward serves h on the connections that the box carries here, until
// the listener ends.
func serveForward(l net.Listener, h http.Handler) *http.Server {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if fc, ok := c.(*forwardConn); ok {
				return sandboxes.WithDelivery(ctx, fc)
			}
			return ctx
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if fc, ok := c.(*forwardConn); ok && state == http.StateIdle {
				fc.responded()
			}
		},
	}
	go func() { _ = srv.Serve(l) }()
	return srv
}

// forwardListener wraps what the session accepts.
type forwardListener struct{ net.Listener }

func (l forwardListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newForwardConn(c), nil
}
