package trainer

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// rollout is the state of a rollout until its result. The lock of rollouts protects it.
type rollout struct {
	attempt int // the highest seen
	// waiting has the calls that arrive while the rollout's state is read. The
	// first call starts that read, because this process may have been
	// restarted.
	waiting []modelcall.IncomingCall
	ready   bool
	calls   map[int]*state
	tools   map[int]*state // calls of tools
	// verifications by the number of their step
	verifications map[int]*state
	conversations *conversations // of the attempt
	touched       time.Time
	version       string // policy version of its newest answer
	oldest        int64  // smallest number of a policy version of the attempt's answers; -1: not known
}

func newRollout() *rollout {
	r := &rollout{touched: time.Now()}
	r.reset()
	return r
}

// reset drops all calls.
func (r *rollout) reset() {
	r.calls, r.tools, r.verifications, r.conversations, r.oldest = map[int]*state{}, map[int]*state{}, map[int]*state{}, &conversations{}, -1
}

// of returns the calls of the kind of a.
func (r *rollout) of(a modelcall.IncomingCall) map[int]*state {
	switch {
	case a.Tool:
		return r.tools
	case a.Verify:
		return r.verifications
	default:
		return r.calls
	}
}

// maxWaiting bounds the calls that wait for their rollout's state.
const maxWaiting = 64

// wait makes a call wait for the rollout's state, or removes it if its worker gave it
// up.
func (r *rollout) wait(a modelcall.IncomingCall) {
	if a.Cancel {
		r.waiting = slices.DeleteFunc(r.waiting, func(w modelcall.IncomingCall) bool { return w.Key == a.Key && w.Tool == a.Tool && w.Verify == a.Verify })
	} else if len(r.waiting) < maxWaiting { // otherwise its worker asks again
		r.waiting = append(r.waiting, a)
	}
}

// remove removes a call that its worker gave up, and returns it; nil: the rollout
// does not have it.
func (r *rollout) remove(a modelcall.IncomingCall) *state {
	if r == nil || r.attempt != a.Key.Attempt {
		return nil
	}
	s := r.of(a)[a.Key.Call]
	delete(r.of(a), a.Key.Call)
	return s
}

// advance begins an attempt if it is newer. It drops the calls of the attempt
// before and returns them.
func (r *rollout) advance(attempt int) (stale []*state) {
	if attempt > r.attempt {
		stale = r.allCalls()
		r.attempt = attempt
		r.reset()
	}
	return stale
}

// allCalls lists the calls of all kinds.
func (r *rollout) allCalls() []*state {
	return slices.Concat(slices.Collect(maps.Values(r.calls)), slices.Collect(maps.Values(r.tools)), slices.Collect(maps.Values(r.verifications)))
}

// forget removes a call, if the rollout has it.
func (r *rollout) forget(s *state) {
	for _, of := range []map[int]*state{r.calls, r.tools, r.verifications} {
		if of[s.key.Call] == s {
			delete(of, s.key.Call)
		}
	}
}

// gave notes the answer to a call, for later calls based on it and for holds and
// cancels by version.
func (r *rollout) gave(s *state, a *schema.Reply) {
	g := given{gen: s.gen}
	if !s.rollouts.cfg.NoBaseIDs {
		g.prompt, g.completion = bytes.Clone(a.PromptIDs), bytes.Clone(a.CompletionIDs)
	}
	r.conversations.gave(s.key.Call, g)
	if len(a.Versions) > 0 {
		r.version = a.Versions[len(a.Versions)-1].Version
	}
	if n := schema.OldestVersion(a.Versions); n >= 0 && (r.oldest < 0 || n < r.oldest) {
		r.oldest = n
	}
}
