package queue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/subjects"
)

// delivery is one delivery of a request from the queue, with its ack subject. The
// server settles by stream sequence, so the ack subject of an earlier delivery
// works as well and gives no protection against other workers.
type delivery struct {
	nc        *nats.Conn
	stream    string
	consumer  string
	subject   string // on which the request was submitted, also of a parked one
	data      []byte
	ack       string // subject
	seq       uint64 // in the stream
	delivered uint64 // number of deliveries so far, including this one
	received  time.Time
	stored    time.Time         // by the server
	trace     trace.SpanContext // of the process that submitted it
}

// newDelivery reads the metadata in the ack subject.
func newDelivery(nc *nats.Conn, m *nats.Msg) (*delivery, error) {
	meta, err := (&nats.Msg{Reply: m.Reply, Sub: &nats.Subscription{}}).Metadata()
	if err != nil {
		return nil, fmt.Errorf("read the handle %q of a request: %w", m.Reply, err)
	}
	return &delivery{
		nc: nc, stream: meta.Stream, consumer: meta.Consumer, subject: subjects.LaneSubject(m.Subject), data: m.Data, ack: m.Reply,
		seq: meta.Sequence.Stream, delivered: meta.NumDelivered, received: time.Now(), stored: meta.Timestamp, trace: traces.Of(m.Header),
	}, nil
}

// undelivered returns a message that was read from a queue without a consumer. It cannot
// be settled.
func undelivered(m *jetstream.RawStreamMsg) *delivery {
	return &delivery{subject: subjects.LaneSubject(m.Subject), data: m.Data, seq: m.Sequence, stored: m.Time, trace: traces.Of(m.Header)}
}

// copied returns the message of a copy of the request, with its trace.
func (d *delivery) copied(subject string, header nats.Header) *nats.Msg {
	traces.Put(header, d.trace)
	return &nats.Msg{Subject: subject, Data: d.data, Header: header}
}

// class returns the class of a parked request; empty for a request of a lane.
func (d *delivery) class() string {
	_, class, _ := subjects.ParseConsumer(d.consumer)
	return class
}

// forget removes the message from the queue without waiting for a confirmation.
func (d *delivery) forget() error { return d.say("+ACK") }

// done removes the message from the queue and waits for the confirmation.
func (d *delivery) done(ctx context.Context) error {
	for try := 0; ; try++ {
		op, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := d.nc.RequestWithContext(op, d.ack, []byte("+ACK"))
		cancel()
		if err == nil {
			return nil
		}
		if try == 3 || ctx.Err() != nil {
			return fmt.Errorf("take message %d off the queue: %w", d.seq, err)
		}
		if err := wire.Pause(ctx, wire.Backoff(try)); err != nil {
			return err
		}
	}
}

// nak asks the server to deliver the message again after a delay.
func (d *delivery) nak(after time.Duration) error { return d.say(nakBody(after)) }

// nakBody is the text of a nak. It always has a delay: the server keeps the time of the next
// delivery on disk then, and a message that was put back just before the server stopped does
// not wait for the rest of its ack wait afterwards.
func nakBody(after time.Duration) string {
	return fmt.Sprintf(`-NAK {"delay":%d}`, max(after, time.Nanosecond).Nanoseconds())
}

// progress restarts the ack wait of the message.
func (d *delivery) progress() error { return d.say("+WPI") }

// drop removes an unreadable message from the queue and gives the reason.
func (d *delivery) drop(reason string) error {
	return d.say("+TERM " + strings.ReplaceAll(reason, "\n", " "))
}

func (d *delivery) say(body string) error {
	if err := d.nc.Publish(d.ack, []byte(body)); err != nil {
		return fmt.Errorf("settle message %d: %w", d.seq, err)
	}
	return nil
}
