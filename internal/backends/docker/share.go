package docker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// shared merges concurrent calls for the same work. The first caller starts the
// work; it is stopped when no caller waits for it.
type shared struct {
	mu      sync.Mutex
	flights map[string]*flight
}

// errUnwanted is the cause of work that is stopped because no caller waits for
// it.
var errUnwanted = errors.New("no rollout waits for it any more")

// maxSaid is the number of output lines kept for callers that join running
// work. Up to twice as many are buffered.
const maxSaid = 1000

// flight is one run of shared work.
type flight struct {
	cancel  context.CancelCauseFunc
	waiting int // guarded by shared.mu
	done    chan struct{}
	err     error // set before done is closed

	mu      sync.Mutex
	said    []string
	dropped int           // number of lines dropped before said
	news    chan struct{} // closed when a line is added; a new one replaces it
}

// do starts the work of a key, or joins it if it runs already, and waits for
// its end. say receives the lines of the work from the oldest kept one on, in
// the caller's goroutine.
func (s *shared) do(ctx context.Context, key string, say func(string), work func(ctx context.Context, say func(string)) error) error {
	f := s.join(ctx, key, work)
	defer s.leave(f)
	next := 0
	for {
		lines, from, news := f.since(next)
		next = from
		if say != nil {
			for _, l := range lines {
				say(l)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-news:
		case <-f.done:
			if lines, _, _ := f.since(next); say != nil {
				for _, l := range lines {
					say(l)
				}
			}
			return f.err
		}
	}
}

// join joins or starts a flight. A new flight waits for the end of a flight of
// the same key that was stopped.
func (s *shared) join(ctx context.Context, key string, work func(context.Context, func(string)) error) *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.flights[key]
	if last != nil && last.waiting > 0 {
		last.waiting++
		return last
	}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, done: make(chan struct{}), waiting: 1, news: make(chan struct{})}
	if s.flights == nil {
		s.flights = map[string]*flight{}
	}
	s.flights[key] = f
	go func() {
		if last != nil {
			<-last.done
		}
		if f.err = context.Cause(own); f.err == nil {
			f.err = guarded(own, f.say, work)
		}
		if cause := context.Cause(own); f.err != nil && cause != nil {
			f.err = cause
		}
		cancel(nil)
		s.mu.Lock()
		if s.flights[key] == f {
			delete(s.flights, key)
		}
		s.mu.Unlock()
		close(f.done)
	}()
	return f
}

// guarded converts a panic into an error: a task's file must not end the
// worker.
func guarded(ctx context.Context, say func(string), work func(context.Context, func(string)) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return work(ctx, say)
}

func (s *shared) leave(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.cancel(errUnwanted)
	}
}

func (f *flight) say(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.said = append(f.said, line); len(f.said) > 2*maxSaid {
		f.said = append(f.said[:0], f.said[maxSaid:]...)
		f.dropped += maxSaid
	}
	close(f.news)
	f.news = make(chan struct{})
}

// since returns the lines from number next on, the number of the line after
// them, and a channel that is closed when a line is added.
func (f *flight) since(next int) ([]string, int, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := append([]string(nil), f.said[max(next-f.dropped, 0):]...)
	return lines, f.dropped + len(f.said), f.news
}
