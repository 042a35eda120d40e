package trainer

import (
	"context"

	"github.com/turngate/turngate/schema"
)

// Wanted selects results, and says how many of a group are enough.
type Wanted struct {
	Group string // results of this group only; empty: all results
	// Enough is the number of usable results of a group after which its other
	// rollouts are cancelled. Each group counts by itself. 0: none is cancelled.
	Enough int
	// Treatments decides which results are usable: the ones with the treatment
	// Train. Nil: DefaultTreatments.
	Treatments Treatments
}

// ResultsOf calls f with each wanted result until no wanted rollout is
// outstanding. When a group has enough usable results, its other rollouts are
// cancelled before f gets the last of these; they give results, too. Only the
// results of this call count. Several calls may run at once: each result goes to
// one of them. A call whose context ends leaves its other results to later calls.
func (t *Trainer) ResultsOf(ctx context.Context, w Wanted, f func(schema.Result)) error {
	count := newTally(w.Enough, w.Treatments)
	for {
		r, ok, err := t.nextOf(ctx, w.Group, false)
		if err != nil || !ok {
			return err
		}
		if count.add(&r) {
			if err := t.CancelGroup(r.Group, "the group has enough results"); err != nil {
				t.cfg.Log.Debug().Err(err).Msg("a cancel was not sent; it is repeated")
			}
		}
		t.mu.Lock()
		if len(t.groups[r.Group]) == 0 {
			delete(count.usable, r.Group)
		}
		t.mu.Unlock()
		f(r)
	}
}

// tally counts the usable results of groups.
type tally struct {
	enough     int
	treatments Treatments
	usable     map[string]int
}

func newTally(enough int, treatments Treatments) *tally {
	if treatments == nil {
		treatments = DefaultTreatments()
	}
	return &tally{enough, treatments, map[string]int{}}
}

// add counts a result, and reports whether it is usable and its group has enough.
func (c *tally) add(r *schema.Result) bool {
	if c.enough <= 0 || r.Group == "" || c.treatments.Of(r) != Train {
		return false
	}
	c.usable[r.Group]++
	return c.usable[r.Group] >= c.enough
}

// addOutstanding makes a rollout outstanding. The caller holds the lock.
func (t *Trainer) addOutstanding(s *submitted) {
	id, group := s.request.ID, s.request.Group
	t.outstanding[id] = s
	t.slots.taken++
	if group == "" {
		return
	}
	if t.groups[group] == nil {
		t.groups[group] = map[schema.ID]struct{}{}
	}
	t.groups[group][id] = struct{}{}
}

// dropOutstanding ends that a rollout is outstanding, and reports whether it was. The
// caller holds the lock.
func (t *Trainer) dropOutstanding(id schema.ID) bool {
	s := t.outstanding[id]
	if s == nil {
		return false
	}
	t.setOver(s, true)
	delete(t.outstanding, id)
	delete(t.hinted, id)
	delete(t.unread, id)
	group := s.request.Group
	delete(t.groups[group], id)
	if len(t.groups[group]) == 0 {
		delete(t.groups, group)
	}
	t.tell(group)
	return true
}

// tell wakes the callers that wait for results of a group, and the callers that
// wait for all results. The caller holds the lock.
func (t *Trainer) tell(group string) {
	for _, of := range []string{group, ""} {
		if c := t.news[of]; c != nil {
			close(c)
			delete(t.news, of)
		}
	}
}

// tellAll is tell for all groups. The caller holds the lock.
func (t *Trainer) tellAll() {
	for group := range t.news {
		t.tell(group)
	}
}

// newsOf returns a channel that is closed when a group, or with an empty name any
// rollout, may have a result, or has one rollout fewer that is outstanding. The
// caller holds the lock.
func (t *Trainer) newsOf(group string) chan struct{} {
	if t.news[group] == nil {
		t.news[group] = make(chan struct{})
	}
	return t.news[group]
}

// hintedOf returns a rollout of a group, or of any if its name is empty, that may
// have a result; empty: there is none. The caller holds the lock.
func (t *Trainer) hintedOf(group string) schema.ID {
	if group == "" {
		for id := range t.hinted {
			return id
		}
		return ""
	}
	for id := range t.groups[group] {
		if _, ok := t.hinted[id]; ok {
			return id
		}
	}
	return ""
}
