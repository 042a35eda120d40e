package box

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/turngate/turngate/sandboxes"
)

// forwarded is the result of the forward operation. The box sends the same
// value in the header frame of every stream that it opens for a connection.
type forwarded struct {
	Port int `json:"port"`
}

// maxForwards is the maximum number of handlers of a sandbox.
const maxForwards = 16

// maxCarried is the maximum number of concurrent connections of one forward,
// far above the needs of agents. The box closes further connections.
const maxCarried = 256

// forward listens on a loopback port, any with 0, and carries each connection to the worker. Bytes
// from the box to the worker travel in frames, so that the box can also report
// how much of the answer it has written to the agent's socket.
func (s *server) forward(port int) (forwarded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.forwards) == maxForwards {
		return forwarded{}, fmt.Errorf("there are %d forwards already", maxForwards)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return forwarded{}, fmt.Errorf("listen on loopback: %w", err)
	}
	reply := forwarded{Port: l.Addr().(*net.TCPAddr).Port}
	s.forwards = append(s.forwards, reply.Port)
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
				s.carry(agent, reply)
			}()
		}
	}()
	return reply, nil
}

func (s *server) carry(agent net.Conn, to forwarded) {
	defer agent.Close()
	stream, err := s.session.Open()
	if err != nil {
		return
	}
	defer stream.Close()
	out := &frameWriter{w: stream}
	if out.json(frameHeader, to) != nil {
		return
	}
	// The lock is held over a write and its ack: if an agent reads its answer and
	// hangs up at once, the ack must be sent before the EOF.
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

// forwardConn is the worker's end of one carried connection. Write sends bytes
// straight to the box. A goroutine decodes the frames from the box and passes
// their data to Read through a pipe.
type forwardConn struct {
	net.Conn // the stream to the box
	frames   *frameReader
	in, out  net.Conn

	mu       sync.Mutex
	written  uint64
	acked    uint64
	boundary uint64 // value of written at the end of the last response
	settled  func(bool)
	idle     bool // the response is complete
	broken   bool // the agent's socket is gone
}

func newForwardConn(c net.Conn, frames *frameReader) *forwardConn {
	f := &forwardConn{Conn: c, frames: frames}
	f.out, f.in = net.Pipe()
	go f.receive()
	return f
}

// receive decodes frames until the stream ends.
func (c *forwardConn) receive() {
	for {
		kind, payload, err := c.frames.next()
		if err != nil {
			break
		}
		switch kind {
		case frameData:
			_, _ = c.in.Write(payload) // fails after the reader has closed; acks still count
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

// Close closes this end. The box still writes the bytes under way and
// acknowledges them.
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
		before(true) // a client that sends the next request has read the last answer
	}
}

// responded marks the response as completely written.
func (c *forwardConn) responded() {
	c.settle(func() { c.idle, c.boundary = true, c.written })
}

// settle applies a change of state and calls the OnSettled function once the
// outcome of the response is known.
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

// maxHeaders bounds the headers of a forwarded request, in bytes.
const maxHeaders = 64 << 10

// headerTime is the longest time for the header of a forwarded request.
const headerTime = time.Minute

// serveForward serves h on the connections that the box carries, until the
// listener ends. headers is the longest time for the header of a request.
func serveForward(l net.Listener, h http.Handler, headers time.Duration) *http.Server {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headers,
		MaxHeaderBytes:    maxHeaders,
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

// Forward implements sandboxes.Sandbox.
func (c *Client) Forward(ctx context.Context, h http.Handler) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var f forwarded
	if err := c.call(ctx, &header{Op: opForward}, nil, nil, &f); err != nil {
		return "", err
	}
	if c.board == nil {
		c.board = &switchboard{session: c.session, ports: map[int]*portListener{}}
		go c.board.run()
	}
	c.servers = append(c.servers, serveForward(c.board.listen(f.Port), h, headerTime))
	return fmt.Sprintf("http://127.0.0.1:%d", f.Port), nil
}

// switchboard passes each stream that the box opens to the listener of its
// port.
type switchboard struct {
	session net.Listener

	mu    sync.Mutex
	ports map[int]*portListener
}

// run accepts streams until the session ends.
func (b *switchboard) run() {
	for {
		stream, err := b.session.Accept()
		if err != nil {
			return
		}
		go b.connect(stream)
	}
}

func (b *switchboard) connect(stream net.Conn) {
	_ = stream.SetReadDeadline(time.Now().Add(time.Minute))
	frames := newFrameReader(stream)
	kind, payload, err := frames.next()
	var to forwarded
	if err != nil || kind != frameHeader || json.Unmarshal(payload, &to) != nil {
		stream.Close()
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	b.mu.Lock()
	l := b.ports[to.Port]
	b.mu.Unlock()
	if l == nil {
		stream.Close()
		return
	}
	select {
	case l.conns <- newForwardConn(stream, frames):
	case <-l.done:
		stream.Close()
	}
}

// listen returns the listener of one port of the box.
func (b *switchboard) listen(port int) net.Listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &portListener{conns: make(chan net.Conn), done: make(chan struct{})}
	b.ports[port] = l
	return l
}

// portListener accepts the connections to one port of the box.
type portListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *portListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *portListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *portListener) Addr() net.Addr { return &net.UnixAddr{Name: "box", Net: "unix"} }
