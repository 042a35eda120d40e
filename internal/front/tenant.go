package front

import (
	"context"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/jobs/recorded"
)

// Bounds of one trainer, so that it leaves room for the others.
const (
	maxRequests = 8         // that are answered at once; others wait for up to waitForTurn
	maxUploads  = 2         // bundles at once: each is in memory
	maxStreams  = 32        // streams, long polls and WebSockets that are open at once
	maxLarge    = 4         // frames above smallFrame that are read or carried out at once, of all WebSockets
	maxMemory   = 256 << 20 // bytes of operations that run, and of the pieces of answers, of all WebSockets
	maxLines    = 64        // connections of its clients
	waitForTurn = 10 * time.Second
	dialWithin  = 10 * time.Second
)

// tenant is a trainer with its own connection to NATS. The connection's rights bound everything
// that is done for it.
type tenant struct {
	name, creds, url string
	log              zerolog.Logger
	requests         chan struct{}       // has a value for each request that is answered
	uploads          chan struct{}       // the same for bundles
	streams          chan struct{}       // the same for streams
	large            chan struct{}       // the same for large frames
	lines            chan struct{}       // the same for connections
	memory           *semaphore.Weighted // of maxMemory
	tools            *mcp.Server

	dialing chan struct{} // has a value while line is used
	line    *line         // nil: not connected yet
}

// line is a connection as a trainer.
type line struct {
	b      *broker.Broker
	queue  *queue.Trainer
	system *operate.System
	read   *recorded.System
}

func newTenant(name, creds, url string, log zerolog.Logger) *tenant {
	return &tenant{
		name: name, creds: creds, url: url, log: log, requests: make(chan struct{}, maxRequests), uploads: make(chan struct{}, maxUploads), streams: make(chan struct{}, maxStreams),
		large: make(chan struct{}, maxLarge), lines: make(chan struct{}, maxLines), memory: semaphore.NewWeighted(maxMemory), dialing: make(chan struct{}, 1),
	}
}

// dial returns the connection, which is made for the first request.
func (t *tenant) dial(ctx context.Context) (*line, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	select {
	case t.dialing <- struct{}{}:
		defer func() { <-t.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect as trainer %s: %w", t.name, context.Cause(ctx))
	}
	if t.line != nil {
		return t.line, nil
	}
	b, err := broker.Dial(ctx, broker.Config{URL: t.url, Creds: t.creds, Name: "turngate serve trainer " + t.name, Inbox: broker.InboxFor(broker.RoleTrainer, t.name), Log: t.log})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	l := &line{b: b, system: operate.On(b, t.name), read: recorded.On(b)}
	if err = b.CheckInbox(ctx); err == nil {
		l.queue, err = queue.NewTrainer(b, t.name)
	}
	if err == nil {
		err = l.queue.AwaitSetup(ctx)
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("connect as trainer %s: %w", t.name, err)
	}
	t.line = l
	return l, nil
}

func (t *tenant) close() {
	t.dialing <- struct{}{}
	defer func() { <-t.dialing }()
	if t.line != nil {
		t.line.b.Close()
		t.line = nil
	}
}

// lost reports whether the connection was made and is lost.
func (t *tenant) lost() bool {
	select {
	case t.dialing <- struct{}{}:
		defer func() { <-t.dialing }()
	default: // it connects
		return false
	}
	return t.line != nil && !t.line.b.Connected()
}

// turn waits until fewer than maxRequests of this trainer are answered. The caller calls
// done.
func (t *tenant) turn(ctx context.Context) (done func(), err error) {
	wait := time.NewTimer(waitForTurn)
	defer wait.Stop()
	select {
	case t.requests <- struct{}{}:
		return func() { <-t.requests }, nil
	case <-wait.C:
		return nil, busy(fmt.Sprintf("this trainer has %d requests that are not answered yet", maxRequests))
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// stream is turn for a stream, which does not wait.
func (t *tenant) stream() (done func(), err error) {
	select {
	case t.streams <- struct{}{}:
		return func() { <-t.streams }, nil
	default:
		return nil, busy(fmt.Sprintf("this trainer has %d open streams: close some", maxStreams))
	}
}

// await waits until no stream is open, or the context ends. No other one begins then.
func (t *tenant) await(ctx context.Context) {
	for range cap(t.streams) {
		select {
		case t.streams <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}

// upload is stream for a bundle.
func (t *tenant) upload() (done func(), err error) {
	select {
	case t.uploads <- struct{}{}:
		return func() { <-t.uploads }, nil
	default:
		return nil, busy(fmt.Sprintf("this trainer stores %d bundles at this moment", maxUploads))
	}
}
