package trainer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
)

// submitted is a rollout without a delivered result.
type submitted struct {
	request schema.Request
	lane    int
	seq     uint64    // sequence number of its message in the queue
	attempt int       // the highest seen
	at      time.Time // of the submission; zero: another process submitted it
	cancel  *string   // reason of a cancel; nil: not cancelled
	over    bool      // it has a result, as far as is known
	sending bool      // Submit is putting it on the queue
}

// outstanding has the rollouts that this process submitted or adopted, until it delivers their
// results. It keeps their slots, hints and lines of the ledger in step with them.
type outstanding struct {
	log      zerolog.Logger
	ledger   *ledger
	slots    *slots
	hints    *hints
	adopting atomic.Bool // orphans that will be adopted are looked for

	working   chan struct{} // closed when rollouts of this process are on the queue
	startWork sync.Once

	mu        sync.Mutex
	of        map[schema.ID]*submitted
	groups    map[string]map[schema.ID]struct{} // ids of of
	delivered recent                            // rollouts with returned results: they are no orphans
}

func newOutstanding(c Config, l *ledger) *outstanding {
	o := &outstanding{log: c.Log, ledger: l, slots: newSlots(c.Slots), hints: newHints(), working: make(chan struct{}), of: map[schema.ID]*submitted{}, groups: map[string]map[schema.ID]struct{}{}}
	o.adopting.Store(c.Orphans == AdoptOrphans && !c.AnswerAll)
	return o
}

// works notes that rollouts of this process are on the queue.
func (o *outstanding) works() { o.startWork.Do(func() { close(o.working) }) }

// add makes a rollout outstanding. It returns false if it is already.
func (o *outstanding) add(s *submitted) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	id, group := s.request.ID, s.request.Group
	if o.of[id] != nil {
		return false
	}
	o.of[id] = s
	o.slots.take()
	if group != "" {
		if o.groups[group] == nil {
			o.groups[group] = map[schema.ID]struct{}{}
		}
		o.groups[group][id] = struct{}{}
	}
	return true
}

// withdraw ends that a rollout is outstanding, since it was not submitted.
func (o *outstanding) withdraw(id schema.ID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[id] == nil {
		return nil
	}
	return o.drop(id)
}

// deliver ends that a rollout is outstanding, since its result is returned. It reports
// whether it was: a result is returned once.
func (o *outstanding) deliver(id schema.ID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[id] == nil {
		return false
	}
	o.delivered.add(id)
	if err := o.drop(id); err != nil {
		o.log.Warn().Err(err).Msg("a result was not written down")
	}
	return true
}

// drop drops an outstanding rollout. The caller holds the lock.
func (o *outstanding) drop(id schema.ID) error {
	s := o.of[id]
	o.setOver(s, true)
	delete(o.of, id)
	group := s.request.Group
	delete(o.groups[group], id)
	if len(o.groups[group]) == 0 {
		delete(o.groups, group)
	}
	o.hints.remove(group, id)
	return o.ledger.write(false, entry{ID: id, Done: true})
}

// setOver notes whether a rollout has a result, which frees its slot. The caller holds the
// lock.
func (o *outstanding) setOver(s *submitted, over bool) {
	if s.over == over {
		return
	}
	s.over = over
	if over {
		o.slots.release()
	} else {
		o.slots.take()
	}
}

// hint notes that a rollout may have a result. It returns false if it is not outstanding.
func (o *outstanding) hint(id schema.ID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.of[id]
	if s == nil {
		return false
	}
	o.setOver(s, true)
	o.hints.add(s.request.Group, id)
	return true
}

// unhint notes that a rollout has no result yet.
func (o *outstanding) unhint(id schema.ID) {
	o.change(id, func(s *submitted) { o.setOver(s, false) })
}

// get returns a copy of an outstanding rollout.
func (o *outstanding) get(id schema.ID) (s submitted, ok bool) {
	ok = o.change(id, func(of *submitted) { s = *of })
	return s, ok
}

// change calls f with an outstanding rollout, under the lock. It returns false if the
// rollout is not outstanding.
func (o *outstanding) change(id schema.ID, f func(*submitted)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.of[id]
	if s != nil {
		f(s)
	}
	return s != nil
}

// each calls f with each outstanding rollout, under the lock.
func (o *outstanding) each(f func(*submitted)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.of {
		f(s)
	}
}

// count returns the number of outstanding rollouts of a group, or of all if its name is
// empty.
func (o *outstanding) count(group string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if group == "" {
		return len(o.of)
	}
	return len(o.groups[group])
}

// had reports whether a rollout is outstanding, or its result was returned lately.
func (o *outstanding) had(id schema.ID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[id] != nil || o.delivered.has(id)
}

// sawAttempt keeps the highest attempt of a rollout, also over restarts.
func (o *outstanding) sawAttempt(id schema.ID, attempt int) {
	var err error
	o.change(id, func(s *submitted) {
		if attempt > s.attempt {
			s.attempt = attempt
			err = o.ledger.write(false, entry{ID: id, Attempt: attempt})
		}
	})
	if err != nil {
		o.log.Warn().Err(err).Msg("an attempt was not written down")
	}
}
