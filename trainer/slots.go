package trainer

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// slots counts the rollouts that are on the queue or running.
type slots struct {
	most    int            // 0: no limit
	taken   int            // outstanding rollouts without a result, as far as is known
	waiting map[string]int // requests that wait for a slot, by group
	freed   chan struct{}  // closed and replaced when a slot becomes free
	// turn has a value while a submission waits for slots: others wait after it, so
	// that a large group is not passed by small ones.
	turn chan struct{}
}

func newSlots(most int) slots {
	return slots{most: most, waiting: map[string]int{}, freed: make(chan struct{}), turn: make(chan struct{}, 1)}
}

func checkSlots(most int) error {
	if most < 0 {
		return &schema.InvalidError{Field: "slots", Value: strconv.Itoa(most), Want: "a number of rollouts, or 0 for no limit"}
	}
	return nil
}

// Load counts the rollouts and calls of a trainer that wait, as far as this process
// knows.
type Load struct {
	Rollouts int // submitted rollouts that have no result, as far as is known
	Waiting  int // requests whose Submit waits for a slot
	// Queued is the number of rollouts that have not made a call here: they wait for
	// a worker, or their sandbox comes up. Rollouts whose agent an upstream answers
	// are not counted, since they make no call here.
	Queued       int
	OldestQueued time.Duration // since the first of Queued was submitted; 0: there is none
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

// Load counts the rollouts and calls that wait at this moment, to set slots by.
func (t *Trainer) Load() Load {
	now := time.Now()
	t.mu.Lock()
	l := Load{Rollouts: t.slots.taken}
	for _, n := range t.slots.waiting {
		l.Waiting += n
	}
	for _, s := range t.outstanding {
		if s.attempt == 0 && !s.over && (s.request.Mode == "" || s.request.Mode == schema.ModeGate) {
			l.Queued++
			l.OldestQueued = max(l.OldestQueued, now.Sub(s.at))
		}
	}
	var calls []*state
	for id, r := range t.rollouts {
		if t.holds(id) {
			continue
		}
		for _, c := range r.calls {
			calls = append(calls, c)
		}
	}
	t.mu.Unlock()
	for _, c := range calls {
		if since, ok := c.waits(); ok {
			l.Calls++
			l.OldestCall = max(l.OldestCall, now.Sub(since))
		}
	}
	return l
}

// SetSlots changes Config.Slots from now on. An error names a negative number.
func (t *Trainer) SetSlots(most int) error {
	if err := checkSlots(most); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.most = most
	t.tellSlots()
	return nil
}

// tellSlots wakes a submission that waits for slots. The caller holds the lock.
func (t *Trainer) tellSlots() {
	close(t.slots.freed)
	t.slots.freed = make(chan struct{})
}

// setOver notes whether an outstanding rollout has a result, which frees its slot.
// The caller holds the lock.
func (t *Trainer) setOver(s *submitted, over bool) {
	if s.over == over {
		return
	}
	s.over = over
	if over {
		t.slots.taken--
		t.tellSlots()
	} else {
		t.slots.taken++
	}
}

// countWaiting counts n more requests of a group that wait for a slot.
func (t *Trainer) countWaiting(group string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.waiting[group] += n
	if t.slots.waiting[group] == 0 {
		delete(t.slots.waiting, group)
		t.tell(group)
	}
}

// expected reports whether a group, or with an empty name any, has outstanding
// rollouts or requests that wait for a slot, or may get orphans. The caller holds the
// lock.
func (t *Trainer) expected(group string) bool {
	if t.adopting {
		return true
	}
	if group == "" {
		return len(t.outstanding) > 0 || len(t.slots.waiting) > 0
	}
	return len(t.groups[group]) > 0 || t.slots.waiting[group] > 0
}

// admit waits for free slots and makes rollouts outstanding: all of a group, or as
// many other requests as fit. fresh says which were not outstanding before. The
// caller calls t.bg.Done when their outcome is written.
func (t *Trainer) admit(ctx context.Context, lane int, batch []schema.Request) (some []schema.Request, fresh []bool, err error) {
	select {
	case t.slots.turn <- struct{}{}:
		defer func() { <-t.slots.turn }()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-t.life.Done():
		return nil, nil, context.Cause(t.life)
	}
	for {
		t.mu.Lock()
		if t.life.Err() != nil {
			t.mu.Unlock()
			return nil, nil, context.Cause(t.life)
		}
		if n := t.room(batch); n > 0 {
			t.bg.Add(1) // Close keeps the ledger open until the outcome is written
			some, fresh = batch[:n], make([]bool, n)
			for i := range some {
				if fresh[i] = t.outstanding[some[i].ID] == nil; fresh[i] { // an earlier submit of the same id may have succeeded
					t.addOutstanding(&submitted{request: some[i], lane: lane, at: time.Now()})
				}
			}
			t.mu.Unlock()
			return some, fresh, nil
		}
		freed := t.slots.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-t.life.Done():
		}
	}
}

// room returns the number of requests, from the first on, that may be queued now. A
// group that is larger than all slots is queued when no slot is taken. The caller
// holds the lock.
func (t *Trainer) room(batch []schema.Request) int {
	fresh := 0
	for i := range batch {
		if t.outstanding[batch[i].ID] == nil {
			fresh++
		}
	}
	free := t.slots.most - t.slots.taken
	switch {
	case t.slots.most == 0, fresh <= free, fresh == 0:
		return len(batch)
	case batch[0].Group != "" && t.slots.taken > 0:
		return 0
	case batch[0].Group != "":
		return len(batch)
	}
	return max(free, 0)
}

// lookAtRestored looks for results of rollouts that ended while no process was
// there, to free their slots.
func (t *Trainer) lookAtRestored(ids []schema.ID) {
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(t.life, 10*time.Second)
		_, err := t.requests.Records.Result(ctx, id)
		cancel()
		switch {
		case err == nil:
			t.onHint(id)
		case !errors.Is(err, broker.ErrNotFound): // the audit looks again
			return
		}
	}
}
