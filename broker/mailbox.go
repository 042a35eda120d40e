package broker

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// mailbox keeps the frames of one call that were not read yet. An engine may
// stream faster than an agent reads for a while; what exceeds the bound is
// dropped, and asked for again.
type mailbox struct {
	ready chan struct{} // has room for one: something is there

	mu    sync.Mutex
	queue []*nats.Msg
	first [1]*nats.Msg // what queue begins in: most calls have one frame
	bytes int
	due   time.Time // when whoever reads is woken although nothing came
}

// maxMailbox bounds the bytes of frames of one call that wait to be read.
const maxMailbox = 32 << 20

func (b *mailbox) open() {
	b.ready = make(chan struct{}, 1)
	b.queue = b.first[:0]
}

// put is false when there is no room.
func (b *mailbox) put(m *nats.Msg) bool {
	b.mu.Lock()
	room := b.bytes+len(m.Data) <= maxMailbox
	if room {
		b.queue = append(b.queue, m)
		b.bytes += len(m.Data)
	}
	b.mu.Unlock()
	b.wake()
	return room
}

func (b *mailbox) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// wakeAt has whoever reads be woken at that time, or up to watchEvery later, if
// nothing comes before.
func (b *mailbox) wakeAt(due time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = due
}

// late wakes whoever reads if that time has come.
func (b *mailbox) late(now time.Time) {
	b.mu.Lock()
	late := now.After(b.due)
	b.mu.Unlock()
	if late {
		b.wake()
	}
}

// take gives the oldest frame and shows the next, or nil. While more are there,
// ready says so.
func (b *mailbox) take() (m, next *nats.Msg) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil, nil
	}
	m = b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	b.bytes -= len(m.Data)
	if len(b.queue) > 0 {
		next = b.queue[0]
		b.wake()
	}
	return m, next
}
