package trajectory

import "github.com/turngate/turngate/schema"

// Ending is the reason for which a rollout ended.
type Ending string

// The reasons.
const (
	EndStop    Ending = "stop"    // the agent ended by itself, and all answers are whole
	EndLength  Ending = "length"  // an answer to it or to a sub-agent was cut at its largest length, the last one or one before
	EndContext Ending = "context" // it ended after a call that was longer than the model's context
	EndCap     Ending = "cap"     // it reached the largest number of calls, of tokens or of repeats
	EndTimeout Ending = "timeout" // it did not end in time
	EndAgent   Ending = "agent"   // it failed, or ended with an error
	EndFault   Ending = "fault"   // the rollout has no result of the agent's work
)

// EndingOf returns why a rollout ended, from its result and all its calls.
func EndingOf(r *schema.Result, calls []*Call) Ending {
	if r.Status != schema.StatusDone {
		return EndFault
	}
	failed := r.Fault != nil && r.Fault.Who == schema.WhoAgent
	if failed {
		switch r.Fault.Code {
		case schema.CodeContext:
			return EndContext
		case schema.CodeCallCap, schema.CodeTokenCap, schema.CodeRepeats:
			return EndCap
		case schema.CodeTimeout:
			return EndTimeout
		}
	}
	for _, c := range calls {
		if c.FinishReason == "length" && (c.Role == schema.TagAgent || c.Role == schema.TagSubagent) {
			return EndLength
		}
	}
	if failed {
		return EndAgent
	}
	return EndStop
}
