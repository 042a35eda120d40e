// Package wire has the small functions that the packages of the broker share: how
// they wait, how they repeat a request and how they read a trainer's message.
package wire

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/schema"
)

const (
	// OpTimeout bounds one request to the server.
	OpTimeout = 5 * time.Second
	// RetryFirst is the upper bound of the first delay of Backoff.
	RetryFirst = 250 * time.Millisecond
	retryMost  = 3 * time.Second
	// WarnAfter is the number of failed tries before a warning is logged. So many
	// take about 7 s.
	WarnAfter = 5
)

// Backoff returns the delay after the failed try with this number, with jitter. It
// grows to 3 s.
func Backoff(try int) time.Duration {
	d := min(RetryFirst<<min(try, 5), retryMost)
	return d/2 + rand.N(d/2+1)
}

// Pause waits for d. Its only error is the context's cause.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Subscribe calls handle for the messages of a subject until stop is called.
func Subscribe(nc *nats.Conn, subject string, handle nats.MsgHandler) (stop func(), err error) {
	sub, err := nc.Subscribe(subject, handle)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return Bounded(nc, sub)
}

// Bounded limits the pending messages of a subscription, and waits until the
// server has the subscription. After an error there is no subscription.
func Bounded(nc *nats.Conn, sub *nats.Subscription) (stop func(), err error) {
	if err = Limit(sub); err == nil {
		if err = nc.FlushTimeout(5 * time.Second); err != nil {
			err = fmt.Errorf("subscribe to %s: %w", sub.Subject, err)
		}
	}
	if err != nil {
		_ = sub.Unsubscribe() // of a closed connection it is gone
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// Limit limits the pending messages of a subscription.
func Limit(sub *nats.Subscription) error {
	if err := sub.SetPendingLimits(1<<20, 512<<20); err != nil {
		return fmt.Errorf("bound the subscription to %s: %w", sub.Subject, err)
	}
	return nil
}

// OneLine makes text valid as the value of a header.
func OneLine(s string) string {
	out := []rune(schema.Clip(s, 500))
	for i, r := range out {
		if r < ' ' || r == 0x7f {
			out[i] = ' '
		}
	}
	return string(out)
}

// Decode decodes a message of a trainer, which must name this version of the
// protocol.
func Decode(data []byte, m schema.Message) error {
	switch m := m.(type) { // nothing of a refused answer is left
	case *schema.Reply:
		*m = schema.Reply{}
	case *schema.ToolResult:
		*m = schema.ToolResult{}
	case *schema.Verdict:
		*m = schema.Verdict{}
	}
	if err := schema.Decode(data, m); err != nil {
		return err
	}
	v := schema.Version
	switch m := m.(type) {
	case *schema.Reply:
		v = m.V
	case *schema.Delta:
		v = m.V
	case *schema.ToolResult:
		v = m.V
	case *schema.Verdict:
		v = m.V
	case *schema.Operation:
		v = m.V
	case *schema.Request:
		v = cmp.Or(m.V, v) // people may leave it out
	case *schema.Cancel:
		v = m.V
	case *schema.Hold:
		v = m.V
	case *schema.Attach:
		v = m.V
	}
	if v != schema.Version {
		return &schema.InvalidError{Field: "v", Value: strconv.Itoa(v), Want: "want " + strconv.Itoa(schema.Version)}
	}
	return nil
}
