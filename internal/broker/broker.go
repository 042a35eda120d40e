// Package broker implements the base of the protocol over NATS: connections,
// streams, records with compare-and-set, files, events, accounts and the embedded
// server. Package queue has requests and jobs, package modelcall the calls of a
// rollout. Apart from these packages and tests, nothing imports nats.go or
// nats-server. Names come from package subjects, bodies from package schema.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/owned"
)

// Config configures the connections to NATS.
type Config struct {
	URL   string // such as nats://127.0.0.1:4222; several separated by commas
	Creds string // a NATS .creds file, or a file with an nkey seed; empty: none
	Name  string // shown to ops in the server's connection list
	// Inbox is the prefix of this connection's own inboxes. Trainers must not have
	// permission to publish to a worker's inboxes. Default "_INBOX.turngate".
	Inbox string
	Log   zerolog.Logger
}

// Broker has two connections: calls for model and tool calls, and bulk for
// queues, events and files, so that large messages never delay a call. Its handles
// use bulk.
type Broker struct {
	Streams  *Streams
	Messages *Messages
	Records  *Records
	Objects  *Objects
	Trainers *Trainers
	Events   *Events
	Dead     *DeadLetters

	*link
	calls *nats.Conn
	inbox string // prefix of this connection's own inboxes
}

// link is the connection that the handles share.
type link struct {
	bulk *nats.Conn
	js   jetstream.JetStream
	log  zerolog.Logger
}

// Dial connects to NATS. It fails if no server can be reached; a connection that
// is lost later reconnects by itself, without limit. While it is lost, publishing
// fails at once and nothing is buffered.
func Dial(ctx context.Context, c Config) (*Broker, error) {
	c.Inbox = cmp.Or(c.Inbox, "_INBOX.turngate")
	l := &link{log: c.Log}
	b := &Broker{link: l, inbox: c.Inbox}
	var err error
	// With a buffer of one byte the goroutine that makes a call also writes it,
	// instead of waking the client's flusher.
	if b.calls, err = connect(ctx, c, "calls", nats.WriteBufferSize(1)); err != nil {
		return nil, err
	}
	if b.bulk, err = connect(ctx, c, "bulk"); err != nil {
		b.calls.Close()
		return nil, err
	}
	if b.js, err = jetstream.New(b.bulk, jetstream.WithPublishAsyncTimeout(wire.OpTimeout)); err != nil {
		b.Close()
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	b.Streams = &Streams{link: l}
	b.Messages = &Messages{link: l, streams: b.Streams}
	b.Records = &Records{link: l, streams: b.Streams, messages: b.Messages}
	b.Objects = &Objects{link: l, streams: b.Streams, messages: b.Messages}
	b.Trainers = &Trainers{link: l, streams: b.Streams}
	b.Events = &Events{link: l, messages: b.Messages}
	b.Dead = &DeadLetters{link: l, streams: b.Streams, messages: b.Messages, trainers: b.Trainers}
	return b, nil
}

// Close flushes published messages for up to 2 s and closes the connections.
func (b *Broker) Close() {
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

// ErrOtherRole reports a credential that does not allow the inbox of the role and
// name as which this process has connected.
var ErrOtherRole = errors.New("the credential does not allow this role and name")

// CheckInbox waits for the server's answer whether the credential allows the inbox of
// this connection. It returns ErrOtherRole if it does not.
func (b *Broker) CheckInbox(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, wire.OpTimeout) // a flush needs a deadline
	defer cancel()
	inbox, err := b.bulk.SubscribeSync(b.inbox + checkedInbox)
	if err == nil {
		defer func() { _ = inbox.Unsubscribe() }()
		err = b.bulk.FlushWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("reach NATS: %w", err)
	}
	// The server refuses a subscription before it answers the flush.
	if err := b.bulk.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return fmt.Errorf("%w: %w", ErrOtherRole, err)
	}
	return nil
}

// checkedInbox is the end of the subject of CheckInbox.
const checkedInbox = ".checked"

// Check sends a request to JetStream and returns the time until its answer. It
// fails at once if the credential does not allow the connection's inbox.
func (b *Broker) Check(ctx context.Context) (time.Duration, error) {
	if err := b.CheckInbox(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	_, err := b.js.AccountInfo(ctx)
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		err = fmt.Errorf("no server with JetStream answers (%w): want a server with JetStream, or, at a leaf node, its link to the servers: the log of its nats-server says why it has none", err)
	}
	if err != nil {
		return 0, fmt.Errorf("ask JetStream for its account: %w", err)
	}
	return time.Since(start), nil
}

// Connected reports whether both connections are up now.
func (b *Broker) Connected() bool { return b.calls.IsConnected() && b.bulk.IsConnected() }

// CallConn is the connection for model and tool calls. It and the other accessors
// of connections are for the packages under broker.
func (b *Broker) CallConn() *nats.Conn { return b.calls }

// BulkConn is the connection for queues, events and files.
func (b *Broker) BulkConn() *nats.Conn { return b.bulk }

// JetStream is the client of JetStream on BulkConn.
func (b *Broker) JetStream() jetstream.JetStream { return b.js }

// Inbox is the prefix of this connection's own inboxes.
func (b *Broker) Inbox() string { return b.inbox }

// Log is the logger of the configuration.
func (b *Broker) Log() *zerolog.Logger { return &b.log }

// ErrNotAllowed reports a credential of another worker, or of no worker.
var ErrNotAllowed = errors.New("the credential does not allow a worker of this name")

// Confirm waits until the server has a connection's subscriptions. Errors wrap
// ErrNotAllowed if the server refuses one.
func Confirm(nc *nats.Conn) error {
	if err := nc.FlushTimeout(wire.OpTimeout); err != nil {
		return fmt.Errorf("reach NATS: %w", err)
	}
	// The server refuses a subscription before it answers the flush.
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	return nil
}

// MaxPayload is the largest message in bytes that the server takes.
func (b *Broker) MaxPayload() int64 { return b.calls.MaxPayload() }

// maxPayload is the largest message in bytes that the embedded server takes.
const maxPayload = 8 << 20

// maxPending is the largest number of bytes that the server keeps for a connection that
// does not read. Then it closes the connection.
const maxPending = 2 * maxPayload

// headerRoom is the part of max_payload in bytes that is reserved for headers
// and the subject.
const headerRoom = 4096

// CheckSize returns a *TooLargeError if a message with a body of n bytes is larger
// than the server takes. The error has the message's name from what, such as "event".
func (b *Broker) CheckSize(what string, n int) error { return b.checkSize(what, n) }

func (l *link) checkSize(what string, n int) error {
	if limit := l.bulk.MaxPayload(); limit > 0 && int64(n)+headerRoom > limit {
		return &TooLargeError{What: what, Size: uint64(n), Limit: limit, Name: "the NATS server's max_payload"}
	}
	return nil
}

// A server may leave a try to connect without an answer for connectTry. The next one
// follows if connectPatience, and the context, leave room for it.
const (
	connectTry      = 5 * time.Second
	connectPatience = 30 * time.Second
)

func connect(ctx context.Context, c Config, purpose string, more ...nats.Option) (*nats.Conn, error) {
	log := c.Log.With().Str("connection", purpose).Logger()
	opts := []nats.Option{
		nats.Name(strings.TrimSpace(c.Name + " " + purpose)),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // the server may have an old configuration, or another one may listen on the port
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.CustomInboxPrefix(c.Inbox),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn().Err(err).Msg("NATS connection lost, reconnecting")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { log.Info().Str("url", nc.ConnectedUrlRedacted()).Msg("NATS connection is back") }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), c.Inbox+checkedInbox) {
				return // CheckInbox returns it
			}
			e := log.Warn().Err(err)
			if sub != nil {
				e = e.Str("subject", sub.Subject)
			}
			e.Msg("NATS error")
		}),
	}
	if c.Creds != "" {
		auth, err := credentials(c.Creds)
		if err != nil {
			return nil, err
		}
		opts = append(opts, auth)
	}
	opts = append(opts, more...)
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	end, _ := ctx.Deadline()
	// Each reconnection has this timeout, too.
	opts = append(opts, nats.Timeout(min(connectTry, max(time.Until(end), 100*time.Millisecond))))
	for {
		nc, err := nats.Connect(c.URL, opts...)
		if err == nil {
			return nc, nil
		}
		err = ConnectError(c.URL, err)
		if !tooLate(err) || ctx.Err() != nil || time.Until(end) < connectTry {
			return nil, err
		}
		log.Warn().Err(err).Msg("no connection yet, trying again")
	}
}

// tooLate reports whether the server or this process did not answer in time, as on a busy
// host. The client has no error of its own for a server that gave up the wait.
func tooLate(err error) bool {
	var late net.Error
	return errors.As(err, &late) && late.Timeout() || strings.Contains(err.Error(), "Authentication Timeout")
}

// credentials reads a .creds file (a JWT with its seed) or a file with a bare
// nkey seed.
func credentials(path string) (nats.Option, error) {
	data, err := owned.Read(path)
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
