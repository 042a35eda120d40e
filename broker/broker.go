// Package broker is the spine: streams, jobs, model calls, events, results and
// files over NATS, for workers, trainers and whoever watches. It is the only
// package that imports nats.go and nats-server. Names come from package
// subjects, bodies from package schema.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
)

// Config says how to reach NATS.
type Config struct {
	URL   string // such as nats://127.0.0.1:4222; several separated by commas
	Creds string // a NATS .creds file, or a file with an nkey seed; empty: none
	Name  string // shown to ops in the server's connection list
	// Inbox is the prefix of this connection's own inbox. A worker's is one
	// that no trainer may publish to. Default "_INBOX.turngate".
	Inbox string
	Log   zerolog.Logger
}

// Broker holds two connections: calls, where latency counts, and bulk for
// queues, events and files, which would hold a call up.
type Broker struct {
	calls *nats.Conn
	bulk  *nats.Conn
	js    jetstream.JetStream
	inbox string // prefix of this connection's own inboxes
	log   zerolog.Logger

	packer  packer
	streams sync.Map                      // of jetstream.Stream, by name
	setup   atomic.Pointer[StreamsConfig] // that Setup made last
}

// Dial connects. It fails if no server can be reached now; later it reconnects
// for ever. What is published while disconnected fails at once instead of
// being replayed later.
func Dial(ctx context.Context, c Config) (*Broker, error) {
	c.Inbox = cmp.Or(c.Inbox, "_INBOX.turngate")
	b := &Broker{log: c.Log, inbox: c.Inbox}
	var err error
	if b.packer, err = newPacker(); err != nil {
		return nil, err
	}
	// A call is written by whoever asks it, not by a goroutine that is woken.
	if b.calls, err = connect(ctx, c, "calls", nats.WriteBufferSize(1)); err != nil {
		return nil, err
	}
	if b.bulk, err = connect(ctx, c, "bulk"); err != nil {
		b.calls.Close()
		return nil, err
	}
	if b.js, err = jetstream.New(b.bulk); err != nil {
		b.Close()
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	return b, nil
}

// ErrUnreachable is returned while the connection to NATS is lost. It comes back
// by itself.
var ErrUnreachable = errors.New("NATS cannot be reached at this moment")

// reach says what the client means that has no room for what it would have to
// send later.
func reach(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return ErrUnreachable
	}
	return err
}

// Close ends the connections after what was published is flushed.
func (b *Broker) Close() {
	b.packer.unzip.Close()
	for _, nc := range []*nats.Conn{b.calls, b.bulk} {
		if nc == nil {
			continue
		}
		if nc.IsConnected() {
			_ = nc.FlushTimeout(2 * time.Second)
		}
		nc.Close()
	}
}

// Check asks the server whether JetStream answers, and says how long that took.
func (b *Broker) Check(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if _, err := b.js.AccountInfo(ctx); err != nil {
		return 0, fmt.Errorf("ask JetStream for its account: %w", err)
	}
	return time.Since(start), nil
}

// Subscriptions counts what this process hears on its connections.
func (b *Broker) Subscriptions() int { return b.calls.NumSubscriptions() + b.bulk.NumSubscriptions() }

// MaxPayload is the largest message in bytes that the server takes.
func (b *Broker) MaxPayload() int64 { return b.calls.MaxPayload() }

// TooLargeError says that a message does not fit into the server's
// max_payload. It is returned before anything is sent.
type TooLargeError struct {
	What  string
	Size  int64 // bytes
	Limit int64 // the server's max_payload in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has %d bytes, the NATS server's max_payload is %d", e.What, e.Size, e.Limit)
}

// maxPayload is the largest message in bytes that the embedded server takes.
const maxPayload = 8 << 20

// headerRoom is kept free for headers and the subject.
const headerRoom = 4096

func checkSize(nc *nats.Conn, what string, n int) error {
	if limit := nc.MaxPayload(); limit > 0 && int64(n)+headerRoom > limit {
		return &TooLargeError{What: what, Size: int64(n), Limit: limit}
	}
	return nil
}

func connect(ctx context.Context, c Config, purpose string, more ...nats.Option) (*nats.Conn, error) {
	log := c.Log.With().Str("connection", purpose).Logger()
	opts := []nats.Option{
		nats.Name(strings.TrimSpace(c.Name + " " + purpose)),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.CustomInboxPrefix(c.Inbox),
		nats.Timeout(5 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn().Err(err).Msg("NATS connection lost, reconnecting")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { log.Info().Str("url", nc.ConnectedUrlRedacted()).Msg("NATS connection is back") }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			e := log.Warn().Err(err)
			if sub != nil {
				e = e.Str("subject", sub.Subject)
			}
			e.Msg("NATS error")
		}),
	}
	if d, ok := ctx.Deadline(); ok {
		opts = append(opts, nats.Timeout(max(time.Until(d), 100*time.Millisecond)))
	}
	if c.Creds != "" {
		auth, err := credentials(c.Creds)
		if err != nil {
			return nil, err
		}
		opts = append(opts, auth)
	}
	nc, err := nats.Connect(c.URL, append(opts, more...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", redactURL(c.URL), err)
	}
	return nc, nil
}

// credentials reads either kind of file: a JWT with its seed, or a bare seed.
func credentials(path string) (nats.Option, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read NATS credentials: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if strings.Contains(text, "BEGIN NATS USER JWT") {
		return nats.UserCredentials(path), nil
	}
	if pair, err := nkeys.FromSeed([]byte(text)); err == nil {
		pair.Wipe()
		return nats.NkeyOptionFromSeed(path)
	}
	return nil, fmt.Errorf("NATS credentials %s: neither a .creds file nor an nkey seed", path)
}

func redactURL(u string) string {
	scheme, rest, ok := strings.Cut(u, "://")
	if at := strings.LastIndexByte(rest, '@'); ok && at >= 0 {
		return scheme + "://" + rest[at+1:]
	}
	return u
}

// ErrNotFound is returned for an object, a result or a state that is not there.
var ErrNotFound = errors.New("not found")
