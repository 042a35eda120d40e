package trainer

import (
	"errors"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// Refusal is an answer of this trainer that a worker refused.
type Refusal struct {
	Key  schema.Key
	Tool bool // the result of a tool call
	// Verify marks a verdict.
	Verify bool
	Gen    string        // name of the generation
	Fault  *schema.Fault // its message names the field
}

var errRefused = errors.New("the worker refused the answer")

// Refusals returns the number of answers that workers refused.
func (t *Trainer) Refusals() int64 { return t.refusals.Load() }

// refused forgets a generation that a worker refused. The worker asks again and
// gets a new one.
func (t *Trainer) refused(a modelcall.IncomingCall) {
	t.refusals.Add(1)
	t.cfg.Log.Warn().Stringer("call", a.Key).Str("generation", a.ResumeGen).Msg(a.Reject.Error())
	t.mu.Lock()
	var given *state
	if r := t.rollouts[a.Key.Rollout]; r != nil && r.attempt == a.Key.Attempt {
		if s := r.of(a)[a.Key.Call]; s != nil && s.gen == a.ResumeGen {
			given = s
			delete(r.of(a), a.Key.Call)
		}
	}
	t.mu.Unlock()
	if given != nil {
		given.end(errRefused)
	}
	if t.cfg.Refused != nil {
		t.cfg.Refused(Refusal{Key: a.Key, Tool: a.Tool, Verify: a.Verify, Gen: a.ResumeGen, Fault: a.Reject})
	}
}
