package queue

import (
	"context"
	"sync"
)

// switchable is a flag that can be waited on.
type switchable struct {
	mu      sync.Mutex
	on      bool
	changed chan struct{}
}

func newSwitch() *switchable { return &switchable{changed: make(chan struct{})} }

func (s *switchable) get() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on, s.changed
}

func (s *switchable) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != on {
		s.on = on
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// wait waits until the flag is off.
func (s *switchable) wait(ctx context.Context) error {
	for {
		on, changed := s.get()
		if !on {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
