package telemetry

import (
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// Calls follows the model calls of one attempt.
type Calls struct {
	metrics *Rollouts

	mu   sync.Mutex
	open map[int]*openCall // by number
}

// openCall is a call that has begun or that waits for its slot.
type openCall struct {
	begun  bool
	reason string        // of the wait; empty: it does not wait
	waited time.Duration // in all
	idle   time.Duration // the part of waited since it began
}

// Calls returns the calls of an attempt.
func (r *Rollouts) Calls() *Calls {
	if r == nil {
		return nil
	}
	return &Calls{metrics: r, open: map[int]*openCall{}}
}

// of returns the call with a number. The caller holds the lock.
func (c *Calls) of(number int) *openCall {
	o := c.open[number]
	if o == nil {
		o = &openCall{}
		c.open[number] = o
	}
	return o
}

// Began records that a call is sent to the model.
func (c *Calls) Began(number int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(number).begun = true
	c.metrics.open.Inc()
}

// Waits records an event of a wait.
func (c *Calls) Waits(w *schema.WaitEvent) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.of(w.Call)
	switch {
	case w.Ended:
		took := time.Duration(w.MS) * time.Millisecond
		o.waited += took
		if o.begun {
			o.idle += took
		}
		c.leave(o)
	case o.reason != w.For:
		c.leave(o)
		o.reason = w.For
		c.metrics.waiting.WithLabelValues(o.reason).Inc()
	}
}

func (c *Calls) leave(o *openCall) {
	if o.reason != "" {
		c.metrics.waiting.WithLabelValues(o.reason).Dec()
		o.reason = ""
	}
}

// Ended records the end of a call. took is the time since Began, and reply is nil if
// the call failed.
func (c *Calls) Ended(number int, took time.Duration, reply *schema.Reply, f *schema.Fault) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.of(number)
	c.leave(o)
	delete(c.open, number)
	c.metrics.waited.Observe(o.waited.Seconds())
	c.metrics.calls.count.WithLabelValues(outcomeOf(f), faultLabel(f)).Inc()
	if o.begun {
		c.metrics.open.Dec()
		c.metrics.calls.took.Observe(max(took-o.idle, 0).Seconds())
	}
	if reply != nil {
		addTokens(c.metrics.tokens, &reply.Usage)
	}
}
