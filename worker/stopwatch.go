package worker

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/sandboxes"
)

// stopwatch measures a rollout's time, which stands still while the rollout is
// held: its worker cannot be reached then, which is nobody's slowness.
type stopwatch struct {
	mu     sync.Mutex
	since  time.Time // not zero while held
	stood  time.Duration
	stop   chan struct{}
	ended  chan struct{}
	frozen bool
	told   func(held bool)
}

// tell has f hear when the rollout is held and goes on.
func (s *stopwatch) tell(f func(held bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = f
	if !s.since.IsZero() {
		f(true)
	}
}

// held is for how long the rollout has stood still so far.
func (s *stopwatch) held() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return s.stood
	}
	return s.stood + time.Since(s.since)
}

func (s *stopwatch) set(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case held && s.since.IsZero():
		s.since = time.Now()
		if s.told != nil {
			s.told(true)
		}
	case !held && !s.since.IsZero():
		s.stood += time.Since(s.since)
		s.since = time.Time{}
		if s.told != nil {
			s.told(false)
		}
	}
}

// follow freezes and thaws the sandbox as the rollout is held and goes on,
// until end.
func (s *stopwatch) follow(ctx context.Context, get func() (bool, <-chan struct{}), sb sandboxes.Sandbox, log zerolog.Logger) {
	if get == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	s.stop, s.ended = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(s.ended)
		for {
			held, changed := get()
			s.obey(ctx, held, sb, log)
			select {
			case <-changed:
			case <-s.stop:
				s.set(false)
				return
			}
		}
	}()
}

func (s *stopwatch) obey(ctx context.Context, held bool, sb sandboxes.Sandbox, log zerolog.Logger) {
	if held == s.frozen {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	act, name := sb.Thaw, "thaw"
	if held {
		act, name = sb.Freeze, "freeze"
		s.set(true)
	}
	if err := act(ctx); err != nil {
		log.Warn().Err(err).Msg("the sandbox did not " + name)
	}
	s.frozen = held
	if !held {
		s.set(false)
	}
	log.Info().Bool("held", held).Msg("rollout was held or goes on")
}

// end stops following.
func (s *stopwatch) end() {
	if s.stop != nil {
		close(s.stop)
		<-s.ended
		s.stop = nil
	}
}

// limit ends a context with cause after so much time in which the rollout was
// not held.
func (s *stopwatch) limit(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	start, before := time.Now(), s.held()
	go func() {
		t := time.NewTimer(d)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				left := d + s.held() - before - time.Since(start)
				if left <= 0 {
					cancel(cause)
					return
				}
				t.Reset(max(left, 10*time.Millisecond))
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
