package box

import (
	"context"
	"sync"
	"time"
)

// clock measures the time in which its process could run. It stands still while
// the box is frozen or the worker is stopped: a gap between ticks counts as one
// second at most.
type clock struct {
	mu      sync.Mutex
	spent   time.Duration
	paused  bool
	pending map[*alarm]struct{}
}

type alarm struct {
	at   time.Duration
	ring func()
}

const (
	tick   = 100 * time.Millisecond
	maxGap = time.Second
)

// Within returns a context that ends with this cause after this process has run
// for d. Time in which the process was stopped does not count.
func Within(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := newClock()
	c.after(d, func() { cancel(cause) })
	go c.run(ctx.Done())
	return ctx, func() { cancel(nil) }
}

func newClock() *clock { return &clock{pending: map[*alarm]struct{}{}} }

// run ticks until stop is closed.
func (c *clock) run(stop <-chan struct{}) {
	t := time.NewTicker(tick)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			return
		case now := <-t.C:
			c.advance(min(now.Sub(last), maxGap))
			last = now
		}
	}
}

func (c *clock) advance(d time.Duration) {
	var due []*alarm
	c.mu.Lock()
	if !c.paused {
		c.spent += d
		for a := range c.pending {
			if a.at <= c.spent {
				due = append(due, a)
				delete(c.pending, a)
			}
		}
	}
	c.mu.Unlock()
	for _, a := range due {
		a.ring()
	}
}

// after calls ring once when the clock has advanced by d; stop cancels the
// call.
func (c *clock) after(d time.Duration, ring func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &alarm{at: c.spent + d, ring: ring}
	c.pending[a] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pending, a)
	}
}

func (c *clock) pause(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = on
}
