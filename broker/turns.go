package broker

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// turns handles the messages of a subscription on goroutines that take turns:
// each waits for a message and handles it itself, while the others wait for the
// next. So a handler may take as long as it likes, and no goroutine has to be
// woken for it. Messages that come one right after the other are handled side
// by side, in any order.
type turns struct {
	sub     *nats.Subscription
	handle  func(*nats.Msg)
	waiting atomic.Int32
}

// maxTurns is how many goroutines wait at most for a message.
const maxTurns = 64

// take handles messages until the subscription ends, or until enough others
// wait. One always waits.
func (t *turns) take() {
	for t.waiting.Add(1) <= maxTurns {
		m, err := t.sub.NextMsgWithContext(context.Background())
		for errors.Is(err, nats.ErrSlowConsumer) { // says that some were lost; they are asked again
			m, err = t.sub.NextMsgWithContext(context.Background())
		}
		if t.waiting.Add(-1) == 0 && err == nil {
			go t.take()
		}
		if err != nil {
			return
		}
		t.handle(m)
	}
	t.waiting.Add(-1)
}
