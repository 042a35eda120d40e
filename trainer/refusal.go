package trainer

import (
	"errors"
	"sync/atomic"

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

// refusals counts the answers that workers refused.
type refusals struct {
	*base
	rollouts *rollouts
	count    atomic.Int64
}

// refuse forgets a generation that a worker refused. The worker asks again and
// gets a new one.
func (r *refusals) refuse(a modelcall.IncomingCall) {
	r.count.Add(1)
	r.cfg.Log.Warn().Stringer("call", a.Key).Str("generation", a.ResumeGen).Msg(a.Reject.Error())
	if given := r.rollouts.refuse(a); given != nil {
		given.end(errRefused)
	}
	if r.cfg.Refused != nil {
		r.cfg.Refused(Refusal{Key: a.Key, Tool: a.Tool, Verify: a.Verify, Gen: a.ResumeGen, Fault: a.Reject})
	}
}
