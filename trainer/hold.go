package trainer

import (
	"net/http"
	"slices"

	"github.com/turngate/turngate/schema"
)

// Selection selects rollouts by all its fields that are set; the zero value
// selects every rollout.
type Selection struct {
	Group   string // of rollouts that this process submitted
	Version string // policy version of the newest answer, by this process's replies
	// Only selects by id. It is called often; it must be quick and must not call
	// the trainer.
	Only func(schema.ID) bool
}

// all reports whether every rollout is selected.
func (s *Selection) all() bool { return s.Group == "" && s.Version == "" && s.Only == nil }

// selects reports whether a selection has a rollout. The caller holds the lock.
func (t *Trainer) selects(s *Selection, id schema.ID) bool {
	if s.Group != "" {
		if o := t.outstanding[id]; o == nil || o.request.Group != s.Group {
			return false
		}
	}
	if s.Version != "" {
		if r := t.rollouts[id]; r == nil || r.version != s.Version {
			return false
		}
	}
	return s.Only == nil || s.Only(id)
}

// Hold makes the calls of the selected rollouts wait from now on, for example
// while weights are updated. It replaces any earlier hold. Calls to this trainer
// are accepted and kept alive but not handed out; workers with an upstream of
// their own hold their calls. Calls that were handed out or sent to an upstream
// go on; see Abort. Workers learn of the hold within a moment, and resume 40 s
// after they last heard from a trainer that held.
func (t *Trainer) Hold(s Selection) { t.setHold(&s) }

// Resume ends any hold and hands out the waiting calls.
func (t *Trainer) Resume() { t.setHold(nil) }

// Abort ends the generations of the selected rollouts that this process has
// begun, and returns their number: their contexts end, and their workers ask
// again. With a hold of the same rollouts before it, no generation goes on while
// weights are updated, and each call is generated anew after Resume. A call of
// which the agent has read pieces fails for the agent instead, which then sends
// it again.
func (t *Trainer) Abort(s Selection) int {
	t.mu.Lock()
	var open []*state
	for id, r := range t.rollouts {
		if !t.selects(&s, id) {
			continue
		}
		for _, c := range r.calls {
			if c.out.Load() {
				open = append(open, c)
			}
		}
	}
	t.mu.Unlock()
	n := 0
	for _, c := range open {
		f := schema.Faultf("call", CodeAborted, schema.WhoTrainer, "the generation was ended, and the call is answered anew")
		f.Status = http.StatusTooEarly
		if (&Pending{state: c}).Fault(f) == nil {
			n++
		}
	}
	return n
}

// CodeAborted is the code of a call's fault after Abort ended its generation.
const CodeAborted = schema.CodeAborted

func (t *Trainer) setHold(s *Selection) {
	t.mu.Lock()
	t.hold, t.holdTold = s, 0
	waiting := append([]*Pending(nil), t.queue...)
	held := make([]bool, len(waiting))
	for i, p := range waiting {
		held[i] = t.holds(p.state.key.Rollout)
	}
	t.mu.Unlock()
	for i, p := range waiting { // tell the workers at once, because it stops their agents' clocks
		p.state.sendBeat(held[i])
	}
	wake(t.arrived)
	t.tellHold()
}

// holds reports whether a rollout's calls wait. The caller holds the lock.
func (t *Trainer) holds(id schema.ID) bool { return t.hold != nil && t.selects(t.hold, id) }

// releaseTold is the number of messages that end a hold.
const releaseTold = 3

// tellHold tells workers with an upstream which rollouts have to wait. It
// repeats the message during a hold, and sends the end releaseTold times.
func (t *Trainer) tellHold() {
	t.mu.Lock()
	if t.hold == nil && t.holdTold >= releaseTold {
		t.mu.Unlock()
		return
	}
	t.holdTold++
	t.holdSerial++
	h := schema.Hold{V: schema.Version, Instance: t.instance, Serial: t.holdSerial, All: t.hold != nil && t.hold.all()}
	if t.hold != nil && !h.All {
		for id, s := range t.outstanding {
			if s.request.UsesUpstream() && t.holds(id) {
				h.IDs = append(h.IDs, id)
			}
		}
		slices.Sort(h.IDs)
	}
	t.mu.Unlock()
	if err := t.requests.Hold(&h); err != nil {
		t.cfg.Log.Warn().Err(err).Msg("workers that use an upstream were not told of a hold; it is sent again")
	}
}
