package trainer

import (
	"slices"

	"github.com/turngate/turngate/schema"
)

// Hold lets calls wait from now on, for example while weights are updated:
// those that this trainer answers are accepted and kept alive but not handed
// out, and workers that ask an engine themselves wait with theirs. Calls that
// were handed out, or asked, are not touched. Workers hear of it within a
// moment, and go on 40 s after a trainer was lost that held.
func (t *Trainer) Hold() { t.setHold(func(schema.ID) bool { return true }, true) }

// HoldGroup holds the calls of a group that this process submitted, instead of
// what was held before.
func (t *Trainer) HoldGroup(group string) {
	members := map[schema.ID]bool{}
	for _, id := range t.which(func(s *submitted) bool { return s.request.Group == group }) {
		members[id] = true
	}
	t.HoldRollouts(func(id schema.ID) bool { return members[id] })
}

// HoldVersion holds the calls of rollouts whose newest answer a policy version
// made, as this process's replies say in their versions, instead of what was
// held before.
func (t *Trainer) HoldVersion(version string) {
	t.HoldRollouts(func(id schema.ID) bool { // called with the lock
		r := t.rollouts[id]
		return r != nil && version != "" && r.version == version
	})
}

// answeredBy notes which policy version made the newest answer of a rollout.
func (t *Trainer) answeredBy(k schema.Key, versions []schema.VersionSpan) {
	if len(versions) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rollouts[k.Rollout]; r != nil && r.attempt == k.Attempt {
		r.version = versions[len(versions)-1].Version
	}
}

// HoldRollouts holds the calls of some rollouts instead of what was held before.
// which is called often, must be quick, and must not call the trainer. Workers
// that ask an engine themselves hold those that this process submitted.
func (t *Trainer) HoldRollouts(which func(schema.ID) bool) { t.setHold(which, false) }

// Resume hands out what was held.
func (t *Trainer) Resume() { t.setHold(nil, false) }

func (t *Trainer) setHold(which func(schema.ID) bool, all bool) {
	t.mu.Lock()
	t.hold, t.holdAll, t.holdTold = which, all, 0
	waiting := append([]*Pending(nil), t.queue...)
	held := make([]bool, len(waiting))
	for i, p := range waiting {
		held[i] = t.holds(p.state.key.Rollout)
	}
	t.mu.Unlock()
	for i, p := range waiting { // tell the workers at once, their agents' clocks depend on it
		p.state.sign(held[i])
	}
	wake(t.arrived)
	t.tellHold()
}

// holds reports whether a rollout's calls wait. It needs the lock.
func (t *Trainer) holds(id schema.ID) bool { return t.hold != nil && t.hold(id) }

// releaseTold is how often the end of a hold is told.
const releaseTold = 3

// tellHold tells workers that ask engines themselves what is held: again and
// again while something is, and some times that nothing is any more.
func (t *Trainer) tellHold() {
	t.mu.Lock()
	if t.hold == nil && t.holdTold >= releaseTold {
		t.mu.Unlock()
		return
	}
	t.holdTold++
	t.holdSerial++
	h := schema.Hold{V: schema.Version, Instance: t.instance, Serial: t.holdSerial, All: t.holdAll}
	if t.hold != nil && !t.holdAll {
		for id, s := range t.outstanding {
			if s.request.AsksAnEngine() && t.hold(id) {
				h.IDs = append(h.IDs, id)
			}
		}
		slices.Sort(h.IDs)
	}
	t.mu.Unlock()
	if err := t.side.Hold(&h); err != nil {
		t.cfg.Log.Warn().Err(err).Msg("workers that ask an engine themselves do not hear of a hold; it is told again")
	}
}
