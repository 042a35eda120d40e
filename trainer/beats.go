package trainer

import (
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker/modelcall"
)

const (
	beatEvery = 5 * time.Second
	// acceptAfter delays the accept, since a call that is answered at once
	// needs none. It is far below the two seconds that a worker waits for an
	// accept.
	acceptAfter = 200 * time.Millisecond
)

// beats keeps open calls alive: it sends their workers accepts and beats.
type beats struct {
	rollouts *rollouts
	handout  *handout
	mu       sync.Mutex
	fresh    []*state // newly opened calls, oldest first; accept looks at them after acceptAfter
}

// open opens a call with its worker's first request.
func (b *beats) open(s *state, a modelcall.IncomingCall) {
	s.open(a)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fresh = append(b.fresh, s)
}

// accept sends an accept for calls that were not answered at once.
func (b *beats) accept() {
	old := time.Now().Add(-acceptAfter)
	b.mu.Lock()
	n := slices.IndexFunc(b.fresh, func(s *state) bool { return s.opened.After(old) })
	if n < 0 {
		n = len(b.fresh)
	}
	due := slices.Clone(b.fresh[:n])
	b.fresh = slices.Delete(b.fresh, 0, n)
	b.mu.Unlock()
	for _, s := range due {
		s.accept()
	}
}

// beat sends beats for open calls.
func (b *beats) beat() {
	all, held := b.rollouts.awake(), b.handout.held()
	for _, c := range all {
		c.sendBeat(held[c])
	}
}
