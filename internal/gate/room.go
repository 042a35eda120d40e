package gate

import (
	"fmt"

	"github.com/turngate/turngate/internal/gate/history"
)

// room is the memory that one request takes from its session's and its worker's
// bounds.
type room struct {
	s        *Session
	retained int64 // bytes
}

// ownRoom is the memory in bytes that a session has outside of its worker's
// bound, so that other agents' requests cannot block an honest agent's.
const ownRoom = 4 << 20

// roomError refuses a request for which there is no memory now. A request that
// could never fit gets a *history.SizeError.
type roomError struct{ text string }

func (e *roomError) Error() string { return e.text }

// enter counts the request as open and reserves memory for it.
func (r *room) enter(size int64) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.open >= maxOpen {
		return &roomError{fmt.Sprintf("More than %d requests are open.", maxOpen)}
	}
	if err := r.set(size); err != nil {
		return err
	}
	r.s.open++
	return nil
}

// resize changes the memory of the request.
func (r *room) resize(size int64) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.set(size)
}

// leave gives back the memory of the request.
func (r *room) leave() {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.open--
	_ = r.set(0) // a smaller size is never refused
}

// set is resize for a caller that holds the session's lock.
func (r *room) set(size int64) error {
	s := r.s
	switch more := size - r.retained; {
	case size > s.cfg.MaxRetained:
		return &history.SizeError{Text: fmt.Sprintf("The request takes %d MiB of memory, more than the %d MiB of a session: it is too long, or has too many parts.", size>>20, s.cfg.MaxRetained>>20)}
	case !s.retain(more):
		return &roomError{"The requests that are open take too much memory."}
	}
	r.retained = size
	return nil
}

// retain takes more of the session's memory, or gives some back. The caller holds
// the lock.
func (s *Session) retain(more int64) bool {
	beyond := func(retained int64) int64 { return max(retained-ownRoom, 0) }
	shared := beyond(s.retained+more) - beyond(s.retained)
	if more > 0 && (s.retained+more > s.cfg.MaxRetained || !s.cfg.Memory.requests.Reserve(shared)) {
		return false
	}
	if more <= 0 {
		s.cfg.Memory.requests.Release(-shared)
	}
	s.retained += more
	return true
}
