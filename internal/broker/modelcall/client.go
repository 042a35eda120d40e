// Package modelcall carries the calls of a rollout between its worker and its trainer:
// model calls, tool calls and verifications. Client is the side of the worker, Server
// that of the trainer.
package modelcall

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Client sends the calls of one worker instance to trainers and receives their
// answers.
type Client struct {
	*packer
	conn             *nats.Conn
	log              zerolog.Logger
	worker, instance string

	bodies sync.Pool // of *[]byte: encoded calls, which live until they are answered
	sub    *nats.Subscription
	closed chan struct{}
	bg     sync.WaitGroup

	mu      sync.Mutex
	inboxes map[string]*mailbox // by token: calls that wait for frames
	tokens  tokens
}

// NewClient returns the client of a worker instance. Close it after use. If the
// server denies the subscription, the error wraps broker.ErrNotAllowed.
func NewClient(b *broker.Broker, worker, instance string) (*Client, error) {
	if err := schema.CheckToken("worker", worker); err != nil {
		return nil, err
	}
	if err := schema.CheckToken("instance", instance); err != nil {
		return nil, err
	}
	p, err := newPacker(b)
	if err != nil {
		return nil, err
	}
	c := &Client{
		packer: p, conn: b.CallConn(), log: b.Log().With().Str("worker", worker).Logger(), worker: worker, instance: instance,
		closed: make(chan struct{}), inboxes: map[string]*mailbox{},
	}
	subject := subjects.GateInboxes(worker, instance)
	if c.sub, err = c.conn.Subscribe(subject, c.onFrame); err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	c.bg.Go(c.wakeLate)
	if err = wire.Limit(c.sub); err == nil {
		err = broker.Confirm(c.conn)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("worker %s: %w", worker, err)
	}
	return c, nil
}

// Close ends the subscription. The broker stays open.
func (c *Client) Close() {
	close(c.closed)
	c.bg.Wait()
	_ = c.sub.Unsubscribe()
}

// wakeEvery is the interval of checks for silent calls. A timer for each call
// would cost more than the rest of the call in this package.
const wakeEvery = 250 * time.Millisecond

// wakeLate wakes calls that got no frame for too long.
func (c *Client) wakeLate() {
	tick := time.NewTicker(wakeEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.closed:
			return
		case now := <-tick.C:
			c.mu.Lock()
			all := slices.Collect(maps.Values(c.inboxes))
			c.mu.Unlock()
			for _, b := range all {
				b.late(now)
			}
		}
	}
}

// tokens generates random inbox tokens, 64 at a time, since one read of
// randomness costs the same for one token as for many.
type tokens struct{ left []byte }

func (t *tokens) next() (token [tokenSize]byte) {
	if len(t.left) == 0 {
		t.left = make([]byte, 64*tokenSize)
		_, _ = rand.Read(t.left) // never fails, see its documentation
	}
	t.left = t.left[copy(token[:], t.left):]
	return token
}

// tokenSize is in bytes.
const tokenSize = 16
