package stage

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/sandboxes"
)

// Clock measures a rollout's time. It stands still while the rollout is
// suspended, because the worker then cannot reach the server.
type Clock struct {
	mu     sync.Mutex
	since  time.Time // start of the suspension; zero: not suspended
	stood  time.Duration
	stop   chan struct{}
	ended  chan struct{}
	notify func(suspended bool)
	waits  func(suspended bool, stood time.Duration) // receives the same changes, with the duration of the suspension

	freezing sync.Mutex // guards open and frozen
	open     []sandboxes.Sandbox
	frozen   bool
}

// Notify makes f receive each change between suspended and running.
func (c *Clock) Notify(f func(suspended bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notify = f
	if !c.since.IsZero() {
		f(true)
	}
}

// SuspendedFor returns the total time for which the rollout was suspended.
func (c *Clock) SuspendedFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return c.stood
	}
	return c.stood + time.Since(c.since)
}

func (c *Clock) set(suspended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case suspended && c.since.IsZero():
		c.since = time.Now()
		if c.notify != nil {
			c.notify(true)
		}
		if c.waits != nil {
			c.waits(true, 0)
		}
	case !suspended && !c.since.IsZero():
		stood := time.Since(c.since)
		c.stood += stood
		c.since = time.Time{}
		if c.notify != nil {
			c.notify(false)
		}
		if c.waits != nil {
			c.waits(false, stood)
		}
	}
}

// follow freezes the sandboxes when the rollout is suspended and thaws them when it
// continues, until End. Only the first call has an effect.
func (c *Clock) follow(ctx context.Context, get func() (bool, <-chan struct{}), waits func(suspended bool, stood time.Duration), log zerolog.Logger) {
	if get == nil || c.stop != nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	c.waits = waits
	c.stop, c.ended = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(c.ended)
		for {
			suspended, changed := get()
			c.obey(ctx, suspended, log)
			select {
			case <-changed:
			case <-c.stop:
				c.set(false)
				return
			}
		}
	}()
}

// Add includes a sandbox in freezing and thawing.
func (c *Clock) Add(ctx context.Context, sb sandboxes.Sandbox, log zerolog.Logger) {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	c.open = append(c.open, sb)
	if c.frozen {
		freeze(ctx, true, sb, log)
	}
}

// Drop excludes a sandbox from freezing and thawing.
func (c *Clock) Drop(sb sandboxes.Sandbox) {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	c.open = slices.DeleteFunc(c.open, func(o sandboxes.Sandbox) bool { return o == sb })
}

func (c *Clock) obey(ctx context.Context, suspended bool, log zerolog.Logger) {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	if suspended == c.frozen {
		return
	}
	if suspended {
		c.set(true)
	}
	for _, sb := range c.open {
		freeze(ctx, suspended, sb, log)
	}
	c.frozen = suspended
	if !suspended {
		c.set(false)
	}
	log.Info().Bool("suspended", suspended).Msg("rollout was suspended or continues")
}

func freeze(ctx context.Context, suspended bool, sb sandboxes.Sandbox, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	act, name := sb.Thaw, "thaw"
	if suspended {
		act, name = sb.Freeze, "freeze"
	}
	if err := act(ctx); err != nil {
		log.Warn().Err(err).Msg("the sandbox did not " + name)
	}
}

// End stops follow.
func (c *Clock) End() {
	if c.stop != nil {
		close(c.stop)
		<-c.ended
		c.stop = nil
	}
}

// Watch returns a function that reports the time since now, without that in which the
// rollout is suspended.
func (c *Clock) Watch() (ran func() time.Duration) {
	start, before := time.Now(), c.SuspendedFor()
	return func() time.Duration { return time.Since(start) - (c.SuspendedFor() - before) }
}

// Limit returns a context that ends with cause after d. Time in which the
// rollout is suspended does not count.
func (c *Clock) Limit(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	ran := c.Watch()
	return Limit(ctx, func() time.Duration { return d - ran() }, cause)
}

// Limit returns a context that ends with cause when no time is left.
func Limit(ctx context.Context, left func() time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		t := time.NewTimer(left())
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				now := left()
				if now <= 0 {
					cancel(cause)
					return
				}
				t.Reset(max(now, 10*time.Millisecond))
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
