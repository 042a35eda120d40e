package broker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// delivery is one request as it came from the queue, with its handle: the
// subject on which it is settled. Settling goes by stream sequence, so a
// handle of an earlier delivery works as well, and fences nothing.
type delivery struct {
	nc        *nats.Conn
	subject   string
	data      []byte
	ack       string // subject
	seq       uint64 // in the stream
	delivered uint64 // how often so far, this time included
	received  time.Time
}

// newDelivery reads the handle's metadata.
func newDelivery(nc *nats.Conn, subject, ack string, data []byte) (*delivery, error) {
	meta, err := (&nats.Msg{Reply: ack, Sub: &nats.Subscription{}}).Metadata()
	if err != nil {
		return nil, fmt.Errorf("read the handle %q of a request: %w", ack, err)
	}
	return &delivery{nc, subject, data, ack, meta.Sequence.Stream, meta.NumDelivered, time.Now()}, nil
}

// done takes the message off the queue and waits for the server's word.
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
		if err := pause(ctx, backoff(try)); err != nil {
			return err
		}
	}
}

// again gives the message back to be delivered after a while.
func (d *delivery) again(after time.Duration) error {
	body := "-NAK"
	if after > 0 {
		body = fmt.Sprintf(`-NAK {"delay":%d}`, after.Nanoseconds())
	}
	return d.say(body)
}

// progress keeps the message from being delivered again for another ack wait.
func (d *delivery) progress() error { return d.say("+WPI") }

// drop takes an unreadable message off the queue for a reason.
func (d *delivery) drop(reason string) error {
	return d.say("+TERM " + strings.ReplaceAll(reason, "\n", " "))
}

func (d *delivery) say(body string) error {
	if err := d.nc.Publish(d.ack, []byte(body)); err != nil {
		return fmt.Errorf("settle message %d: %w", d.seq, err)
	}
	return nil
}
