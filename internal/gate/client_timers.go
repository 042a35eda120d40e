package gate

import (
	"slices"
	"sync"
	"time"
)

// clientTimers checks all waiting requests at an interval: it removes clients that
// went away, and sends keep-alives that are due. A timer for each request would
// cost more than all other work of a session for it.
type clientTimers struct {
	every time.Duration

	mu      sync.Mutex
	clients []*client
	running bool
}

// checkEvery is the interval, unless a rule needs a shorter one.
const checkEvery = 250 * time.Millisecond

func newClientTimers(t Timing) *clientTimers {
	return &clientTimers{every: min(checkEvery, t.Headers/4, t.KeepAlive/4)}
}

func (t *clientTimers) add(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.timer = len(t.clients)
	t.clients = append(t.clients, c)
	if !t.running {
		t.running = true
		go t.run()
	}
}

func (t *clientTimers) remove(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(c)
}

// drop removes a client. The caller holds the lock.
func (t *clientTimers) drop(c *client) {
	if c.timer < 0 {
		return
	}
	last := len(t.clients) - 1
	t.clients[c.timer] = t.clients[last]
	t.clients[c.timer].timer = c.timer
	t.clients[last] = nil
	t.clients, c.timer = t.clients[:last], -1
}

// run ends when there are no clients.
func (t *clientTimers) run() {
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for now := range tick.C {
		t.mu.Lock()
		if len(t.clients) == 0 {
			t.running = false
			t.mu.Unlock()
			return
		}
		for _, c := range slices.Backward(t.clients) {
			switch {
			case c.request.Err() != nil:
				t.drop(c)
				go c.gone()
			case now.Add(t.every).After(c.due):
				c.due = now.Add(c.x.s.cfg.Timing.KeepAlive)
				go c.keepAlive()
			}
		}
		t.mu.Unlock()
	}
}
