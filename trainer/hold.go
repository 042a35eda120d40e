package trainer

import "github.com/turngate/turngate/schema"

// Hold lets calls wait from now on: they are accepted and kept alive but not
// handed out, for example while weights are updated. Calls that were handed
// out are not touched.
func (t *Trainer) Hold() { t.HoldRollouts(func(schema.ID) bool { return true }) }

// HoldGroup holds the calls of a group that this process submitted, instead of
// what was held before.
func (t *Trainer) HoldGroup(group string) {
	members := map[schema.ID]bool{}
	for _, id := range t.which(func(s *submitted) bool { return s.request.Group == group }) {
		members[id] = true
	}
	t.HoldRollouts(func(id schema.ID) bool { return members[id] })
}

// HoldRollouts holds the calls of some rollouts, for example those that began
// with an older policy version, instead of what was held before. which is
// called often, must be quick, and must not call the trainer.
func (t *Trainer) HoldRollouts(which func(schema.ID) bool) { t.setHold(which) }

// Resume hands out what was held.
func (t *Trainer) Resume() { t.setHold(nil) }

func (t *Trainer) setHold(which func(schema.ID) bool) {
	t.mu.Lock()
	t.hold = which
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
}

// holds reports whether a rollout's calls wait. It needs the lock.
func (t *Trainer) holds(id schema.ID) bool { return t.hold != nil && t.hold(id) }
