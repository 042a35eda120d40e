package box

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/turngate/turngate/sandboxes"
)

// Client is the worker's end of the connection to one box. It implements every
// method of sandboxes.Sandbox except Argv, Online, Service and Close; backends
// embed it.
type Client struct {
	Caller
	session *yamux.Session

	mu      sync.Mutex
	servers []*http.Server
	board   *switchboard // nil before the first Forward
	stop    chan struct{}
	once    sync.Once

	explain   func() error // see Explain
	explained sync.Once
	why       error // valid after explained
}

// NewClient proves the secret on a new connection and takes ownership of the
// connection. It waits for the box until the context ends. On error it closes
// the connection.
func NewClient(ctx context.Context, conn net.Conn, secret []byte, workdir string) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := handshake(conn, secret, roleWorker)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("meet the box: %w", err)
	}
	session, err := yamux.Client(conn, muxConfig())
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("speak to the box: %w", err)
	}
	c := &Client{session: session, stop: make(chan struct{})}
	c.Caller = Caller{stream: session.Open, workdir: workdir, lost: c.lost}
	hold, _, _, err := c.open(&header{Op: opHold})
	if err != nil {
		session.Close()
		return nil, err
	}
	go c.hold(hold)
	return c, nil
}

const holdEvery = 10 * time.Second

// hold sends a sign of life to the box every holdEvery.
func (c *Client) hold(stream net.Conn) {
	defer stream.Close()
	t := time.NewTicker(holdEvery)
	defer t.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-c.session.CloseChan():
			return
		case <-t.C:
			if _, err := stream.Write([]byte{1}); err != nil {
				return
			}
		}
	}
}

// Disconnect closes the connection. The box then ends everything by itself.
func (c *Client) Disconnect() {
	c.once.Do(func() {
		close(c.stop)
		c.mu.Lock()
		servers := c.servers
		c.mu.Unlock()
		_ = c.session.Close()
		for _, srv := range servers {
			_ = srv.Close()
		}
	})
}

// Lost returns a channel that is closed when the connection to the box is gone.
func (c *Client) Lost() <-chan struct{} { return c.session.CloseChan() }

// Explain sets the function that finds out why the box ended without a
// Disconnect. It returns an error that wraps sandboxes.ErrLost, and runs at most
// once. Call Explain before any other method.
func (c *Client) Explain(f func() error) { c.explain = f }

// closeTime is the longest time between an error of a stream and the end of the
// session that causes it.
const closeTime = time.Second

// lost returns the error of an operation after its stream broke.
func (c *Client) lost() error {
	if c.explain == nil {
		return sandboxes.ErrLost
	}
	select {
	case <-c.stop:
		return sandboxes.ErrLost
	case <-c.session.CloseChan():
	case <-time.After(closeTime):
		return sandboxes.ErrLost
	}
	select {
	case <-c.stop: // it closes the session, too
		return sandboxes.ErrLost
	default:
	}
	c.explained.Do(func() { c.why = c.explain() })
	return c.why
}
