package trainer

import (
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Failure is a kind of failure of a rollout.
type Failure string

// The kinds of failures.
const (
	FailureNone         Failure = "none"          // a reward is known, several are without a headline, or the request has no verifier
	FailureAgent        Failure = "agent"         // as none, but the agent failed or reached a cap
	FailureAgentTimeout Failure = "agent_timeout" // the agent did not end in time
	FailureNoCalls      Failure = "no_calls"      // the agent ended without a call to its model, so the reward is not the model's
	FailureRefused      Failure = "refused"       // the agent ended after a refused model call, so the reward is not the model's
	FailureContext      Failure = "context"       // as agent, since the conversation was longer than the model's context
	FailureNoReward     Failure = "no_reward"     // the agent ended, and the verifier gave no reward
	// FailureInfrastructure is one of the worker, the sandbox or the trainer.
	// Workers have tried the rollout again by then, where that helps.
	FailureInfrastructure Failure = "infrastructure"
	FailureTask           Failure = "task" // of the task or the request: a new try fails, too
	FailureCancelled      Failure = "cancelled"
)

// FailureOf returns the kind of a result's failure.
func FailureOf(r *schema.Result) Failure {
	f := r.Fault
	if f == nil {
		f = &schema.Fault{}
	}
	switch {
	case r.Status == schema.StatusCancelled:
		return FailureCancelled
	case r.Status == schema.StatusDead:
		return FailureInfrastructure
	case r.Status == schema.StatusDone && f.Stage == "agent" && f.Code == schema.CodeTimeout:
		return FailureAgentTimeout
	case r.Status == schema.StatusDone && f.Stage == "agent" && f.Code == schema.CodeNoCalls:
		return FailureNoCalls
	case r.Status == schema.StatusDone && f.Stage == "agent" && f.Code == schema.CodeRefused:
		return FailureRefused
	case r.Status == schema.StatusDone && r.Reward == nil && len(r.Rewards) == 0 && verified(r, f):
		return FailureNoReward
	case r.Status == schema.StatusDone && f.Stage == "agent" && f.Code == schema.CodeContext:
		return FailureContext
	case r.Status == schema.StatusDone && f.Who == schema.WhoAgent:
		return FailureAgent
	case r.Status == schema.StatusDone:
		return FailureNone
	case f.Who == schema.WhoWorker || f.Who == schema.WhoSandbox || f.Who == schema.WhoTrainer:
		return FailureInfrastructure
	case f.Stage == "verify":
		return FailureNoReward
	default:
		return FailureTask
	}
}

// verified reports whether a verifier ran, or should have. A request without one
// gives no reward: its trainer finds the reward itself.
func verified(r *schema.Result, f *schema.Fault) bool {
	return r.Separation != "" || f.Stage == "verify" || slices.ContainsFunc(r.Phases, func(p schema.Phase) bool {
		return p.Name == "verify" || strings.HasSuffix(p.Name, "/verify") // of a step
	})
}

// Treatment is the use that a trainer makes of a rollout.
type Treatment string

// The treatments.
const (
	Train Treatment = "train"
	Mask  Treatment = "mask"  // leave its tokens out of the loss
	Again Treatment = "again" // submit its request again, under another id
)

// Treatments is a policy: the treatment of each kind of failure. A kind that is
// missing is masked.
type Treatments map[Failure]Treatment

// DefaultTreatments returns a new policy, that of SkyRL's generator for Harbor: a
// rollout with a full context is trained on with its reward, and a rollout is masked
// if its agent did not end in time, called no model, or ended after a refused call. A rollout runs again if it has no reward or if
// the infrastructure failed. SkyRL tries twice in all. In difference to it, a failure
// of the task is masked at once, a rollout with a full context keeps its own reward
// (there it is 0), and a rollout that failed masks only itself (there all rollouts of
// its prompt). AReaL rejects a rollout without a reward, and neither masks it nor
// tries it again.
func DefaultTreatments() Treatments {
	return Treatments{
		FailureNone: Train, FailureAgent: Train, FailureContext: Train, FailureAgentTimeout: Mask, FailureNoCalls: Mask, FailureRefused: Mask, FailureNoReward: Again,
		FailureInfrastructure: Again, FailureTask: Mask, FailureCancelled: Mask,
	}
}

// Of returns the treatment of a result.
func (t Treatments) Of(r *schema.Result) Treatment {
	if how, ok := t[FailureOf(r)]; ok {
		return how
	}
	return Mask
}
