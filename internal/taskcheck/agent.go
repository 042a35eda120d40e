package taskcheck

import (
	"cmp"
	"fmt"
	"time"

	"github.com/turngate/turngate/schema"
)

// AgentScript is the replay script for the rollout of AgentRequest: the model
// runs one command and ends.
const AgentScript = `aux: A check
steps:
- run: echo turngate > checked.txt
- text: Done.
`

// AgentRequest returns the smallest rollout that shows whether an agent works:
// the agent calls its model, runs one command and ends.
func AgentRequest(agent, backend string, within time.Duration) schema.Request {
	return schema.Request{
		V: schema.Version, MaxAttempts: 1,
		Task:    schema.Task{Name: "check " + agent, Instruction: "Run `echo turngate > checked.txt` in your shell, then stop.\n"},
		Agent:   schema.AgentChoice{Name: agent},
		Sandbox: schema.SandboxChoice{Backend: backend},
		Limits:  schema.Limits{AgentMS: within.Milliseconds()},
		Gate:    schema.GateOptions{MaxCalls: 20},
		Verify:  &schema.Verify{Run: `if [ "$(cat checked.txt)" = turngate ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt`},
	}
}

// JudgeAgent returns the reason why an agent does not work; empty if it works.
func JudgeAgent(r *schema.Result) string {
	calls := 0
	for _, c := range r.Calls {
		calls += c.Count
	}
	switch {
	case r.Fault != nil:
		return r.Fault.Error()
	case r.Status != schema.StatusDone:
		return "the status of the rollout is " + string(r.Status)
	case calls == 0:
		return "it ended without a call to its model" + exitText(r)
	case r.Reward == nil || *r.Reward != 1:
		return fmt.Sprintf("it did not run the command of its model's answer (%d calls)%s", calls, exitText(r))
	}
	return ""
}

func exitText(r *schema.Result) string {
	if r.Exit == nil {
		return ""
	}
	return "; it ended with " + cmp.Or(r.Exit.String(), "no status")
}
