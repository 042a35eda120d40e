package modelcall

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// mailbox buffers the unread frames of one call. A trainer may stream faster than
// an agent reads for a while; frames above the bound are dropped and asked for
// again.
type mailbox struct {
	ready chan struct{} // of capacity 1; has a value if there are frames or due has passed

	mu    sync.Mutex
	queue []*nats.Msg
	first [1]*nats.Msg // first memory of queue, enough for most calls
	bytes int
	due   time.Time // time to wake the reader even without a frame
}

// maxMailbox bounds the unread frames of one call, in bytes.
const maxMailbox = 32 << 20

func (b *mailbox) open() {
	b.ready = make(chan struct{}, 1)
	b.queue = b.first[:0]
}

// put adds a frame. It returns false if there is no room.
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

// wakeAt sets the time to wake the reader if no frame arrives before. The reader
// wakes up to wakeEvery later.
func (b *mailbox) wakeAt(due time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = due
}

// late wakes the reader if due has passed.
func (b *mailbox) late(now time.Time) {
	b.mu.Lock()
	late := now.After(b.due)
	b.mu.Unlock()
	if late {
		b.wake()
	}
}

// read removes the oldest frame and returns it and the next one, which stays, or
// nil. It signals ready again if frames are left.
func (b *mailbox) read() (m, next *nats.Msg) {
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
