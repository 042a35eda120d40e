package trainer

import (
	"strconv"
	"sync"

	"github.com/turngate/turngate/schema"
)

// slots counts the rollouts that are on the queue or running.
type slots struct {
	// turn has a value while a submission waits for slots: others wait after it, so
	// that a large group is not passed by small ones.
	turn chan struct{}

	mu      sync.Mutex
	most    int            // 0: no limit
	taken   int            // outstanding rollouts without a result, as far as is known
	waiting map[string]int // requests that wait for a slot, by group
	freed   chan struct{}  // closed and replaced when a slot becomes free
}

func newSlots(most int) *slots {
	return &slots{turn: make(chan struct{}, 1), most: most, waiting: map[string]int{}, freed: make(chan struct{})}
}

func checkSlots(most int) error {
	if most < 0 {
		return &schema.InvalidError{Field: "slots", Value: strconv.Itoa(most), Want: "a number of rollouts, or 0 for no limit"}
	}
	return nil
}

// set changes the number of slots.
func (s *slots) set(most int) error {
	if err := checkSlots(most); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = most
	s.signal()
	return nil
}

// take takes a slot, also beyond the limit.
func (s *slots) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken++
}

// release frees a slot.
func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.signal()
}

// signal wakes a submission that waits for slots. The caller holds the lock.
func (s *slots) signal() {
	close(s.freed)
	s.freed = make(chan struct{})
}

// room returns the number of requests of a batch, from the first on, that may be queued
// now; fresh is the number that need a slot. A group that is larger than all slots is
// queued when no slot is taken. freed is closed when there may be more room.
func (s *slots) room(batch []schema.Request, fresh int) (n int, freed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, group := s.most-s.taken, batch[0].Group != ""
	switch {
	case s.most == 0, fresh <= free, fresh == 0:
		n = len(batch)
	case group && s.taken == 0:
		n = len(batch)
	case !group:
		n = max(free, 0)
	}
	return n, s.freed
}

// wait counts n more requests of a group that wait for a slot. It returns false if none
// of the group waits any more.
func (s *slots) wait(group string, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[group] += n
	if s.waiting[group] == 0 {
		delete(s.waiting, group)
		return false
	}
	return true
}

// waits reports whether a request of a group, or of any if its name is empty, waits for a
// slot.
func (s *slots) waits(group string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if group == "" {
		return len(s.waiting) > 0
	}
	return s.waiting[group] > 0
}

// counts returns the numbers of taken slots and of requests that wait for one.
func (s *slots) counts() (taken, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.waiting {
		waiting += n
	}
	return s.taken, waiting
}
