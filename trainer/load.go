package trainer

import (
	"cmp"
	"time"

	"github.com/turngate/turngate/schema"
)

// Load counts the rollouts and calls of a trainer that wait, as far as this process
// knows.
type Load struct {
	Rollouts int // submitted rollouts that have no result, as far as is known
	Waiting  int // requests that wait in Submit for a slot
	// Queued is the number of rollouts that have not made a call here: they wait for
	// a worker, or their sandbox comes up. Rollouts that an upstream answers are not counted,
	// since they make no call here.
	Queued int
	// OldestQueued is the time since the first of Queued was submitted, without rollouts of an
	// earlier process; 0: there is none.
	OldestQueued time.Duration
	// Calls is the number of calls that were not handed out and are not held: with
	// Config.Parallel as large as the number of calls that the engine generates at
	// once, they wait for the engine.
	Calls      int
	OldestCall time.Duration // since the first of Calls came; 0: there is none
}

// Steer returns the number of slots to set next, for a loop that asks every few
// seconds: a quarter fewer than slots while a call waits longer than wait to be
// handed out; the same while a rollout waits longer for a worker, or nothing waits for a
// slot; otherwise an eighth more. Slots of 0, no limit, count as most.
func (l Load) Steer(slots, least, most int, wait time.Duration) int {
	slots = cmp.Or(slots, most)
	switch {
	case l.OldestCall > wait:
		slots = slots * 3 / 4
	case l.Waiting > 0 && l.OldestQueued <= wait:
		slots += max(slots/8, 1)
	}
	return max(least, min(slots, most))
}

// loadOf counts the rollouts and calls that wait at this moment.
func loadOf(o *outstanding, r *rollouts, h *handout) (l Load) {
	now := time.Now()
	l.Rollouts, l.Waiting = o.slots.counts()
	o.each(func(s *submitted) {
		if s.attempt == 0 && !s.over && (s.request.Mode == "" || s.request.Mode == schema.ModeGate) {
			l.Queued++
			if !s.at.IsZero() {
				l.OldestQueued = max(l.OldestQueued, now.Sub(s.at))
			}
		}
	})
	for _, c := range r.calls() {
		if since, ok := c.waits(); ok && !h.holds(c.key.Rollout) {
			l.Calls++
			l.OldestCall = max(l.OldestCall, now.Sub(since))
		}
	}
	return l
}
