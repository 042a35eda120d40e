package rollout

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/sandboxes"
)

// stopwatch measures a rollout's time. It stands still while the rollout is
// suspended, because the worker then cannot reach the server.
type stopwatch struct {
	mu    sync.Mutex
	since time.Time // start of the suspension; zero: not suspended
	stood time.Duration
	stop  chan struct{}
	ended chan struct{}
	told  func(suspended bool)
	waits func(suspended bool, stood time.Duration) // receives the same changes, with the duration of the suspension

	freezing sync.Mutex // guards open and frozen
	open     []sandboxes.Sandbox
	frozen   bool
}

// tell makes f receive each change between suspended and running.
func (s *stopwatch) tell(f func(suspended bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = f
	if !s.since.IsZero() {
		f(true)
	}
}

// suspendedFor returns the total time for which the rollout was suspended.
func (s *stopwatch) suspendedFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return s.stood
	}
	return s.stood + time.Since(s.since)
}

func (s *stopwatch) set(suspended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case suspended && s.since.IsZero():
		s.since = time.Now()
		if s.told != nil {
			s.told(true)
		}
		if s.waits != nil {
			s.waits(true, 0)
		}
	case !suspended && !s.since.IsZero():
		stood := time.Since(s.since)
		s.stood += stood
		s.since = time.Time{}
		if s.told != nil {
			s.told(false)
		}
		if s.waits != nil {
			s.waits(false, stood)
		}
	}
}

// follow freezes the sandboxes when the rollout is suspended and thaws them when it
// continues, until end.
func (s *stopwatch) follow(ctx context.Context, get func() (bool, <-chan struct{}), log zerolog.Logger) {
	if get == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	s.stop, s.ended = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(s.ended)
		for {
			suspended, changed := get()
			s.obey(ctx, suspended, log)
			select {
			case <-changed:
			case <-s.stop:
				s.set(false)
				return
			}
		}
	}()
}

// add includes a sandbox in freezing and thawing.
func (s *stopwatch) add(ctx context.Context, sb sandboxes.Sandbox, log zerolog.Logger) {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	s.open = append(s.open, sb)
	if s.frozen {
		freeze(ctx, true, sb, log)
	}
}

// drop excludes a sandbox from freezing and thawing.
func (s *stopwatch) drop(sb sandboxes.Sandbox) {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	s.open = slices.DeleteFunc(s.open, func(o sandboxes.Sandbox) bool { return o == sb })
}

func (s *stopwatch) obey(ctx context.Context, suspended bool, log zerolog.Logger) {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	if suspended == s.frozen {
		return
	}
	if suspended {
		s.set(true)
	}
	for _, sb := range s.open {
		freeze(ctx, suspended, sb, log)
	}
	s.frozen = suspended
	if !suspended {
		s.set(false)
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

// end stops follow.
func (s *stopwatch) end() {
	if s.stop != nil {
		close(s.stop)
		<-s.ended
		s.stop = nil
	}
}

// limit returns a context that ends with cause after d. Time in which the
// rollout is suspended does not count.
func (s *stopwatch) limit(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	start, before := time.Now(), s.suspendedFor()
	return limit(ctx, func() time.Duration { return d + s.suspendedFor() - before - time.Since(start) }, cause)
}

// limit returns a context that ends with cause when no time is left.
func limit(ctx context.Context, left func() time.Duration, cause error) (context.Context, context.CancelFunc) {
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
