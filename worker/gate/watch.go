package gate

import (
	"slices"
	"sync"
	"time"
)

// watch checks all waiting requests at an interval: it removes clients that
// went away, and sends keep-alives that are due. A timer for each request would
// cost more than all other work of a session for it.
type watch struct {
	every time.Duration

	mu      sync.Mutex
	clients []*client
	running bool
}

// watchEvery is the interval, unless a rule needs a shorter one.
const watchEvery = 250 * time.Millisecond

func newWatch(t Timing) *watch {
	return &watch{every: min(watchEvery, t.Headers/4, t.KeepAlive/4)}
}

func (w *watch) add(c *client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.watched = len(w.clients)
	w.clients = append(w.clients, c)
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *watch) remove(c *client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(c)
}

// drop removes a client. The caller holds the lock.
func (w *watch) drop(c *client) {
	if c.watched < 0 {
		return
	}
	last := len(w.clients) - 1
	w.clients[c.watched] = w.clients[last]
	w.clients[c.watched].watched = c.watched
	w.clients[last] = nil
	w.clients, c.watched = w.clients[:last], -1
}

// run ends when there are no clients.
func (w *watch) run() {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for now := range tick.C {
		w.mu.Lock()
		if len(w.clients) == 0 {
			w.running = false
			w.mu.Unlock()
			return
		}
		for _, c := range slices.Backward(w.clients) {
			switch {
			case c.request.Err() != nil:
				w.drop(c)
				go c.gone()
			case now.Add(w.every).After(c.due):
				c.due = now.Add(c.x.s.cfg.Timing.KeepAlive)
				go c.keepAlive()
			}
		}
		w.mu.Unlock()
	}
}
