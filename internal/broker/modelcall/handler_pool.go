package modelcall

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// handlerPool handles the messages of a subscription on a pool of goroutines. Each
// goroutine reads a message and handles it itself while another reads the next
// one, so a slow handler delays no message and no message is passed between
// goroutines. Messages may be handled at the same time and in any order.
type handlerPool struct {
	sub     *nats.Subscription
	handle  func(*nats.Msg)
	waiting atomic.Int32
}

// maxWaitingHandlers is the largest number of goroutines that wait for a message.
const maxWaitingHandlers = 64

// run handles messages until the subscription ends or maxWaitingHandlers other goroutines
// wait for one. At least one goroutine always waits.
func (p *handlerPool) run() {
	for p.waiting.Add(1) <= maxWaitingHandlers {
		m, err := p.sub.NextMsgWithContext(context.Background())
		for errors.Is(err, nats.ErrSlowConsumer) { // some calls were dropped; their workers send them again
			m, err = p.sub.NextMsgWithContext(context.Background())
		}
		if p.waiting.Add(-1) == 0 && err == nil {
			go p.run()
		}
		if err != nil {
			return
		}
		p.handle(m)
	}
	p.waiting.Add(-1)
}
