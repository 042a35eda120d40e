package gate

import (
	"slices"
	"sync"
	"time"
)

// watch looks, again and again, at the requests that wait for their answers:
// whether their clients are still there, and want a sign. Timers for each of
// them would cost more than all else that a session does for a request.
type watch struct {
	every time.Duration

	mu      sync.Mutex
	clients []*client
	running bool
}

// watchEvery is how often, unless the rules are faster.
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

// drop needs the lock.
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

// run looks until there is nobody.
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
