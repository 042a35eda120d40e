package worker_test

import (
	"context"
	"io"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// TestAnAgentThatCallsNoModel: an agent that should call a model and ends without
// a call has a fault, also in one step of several. The verifier runs all the same.
func TestAnAgentThatCallsNoModel(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("0.5"), ":": exits(0)}, map[string]dummy.Program{
		"agent": exits(0),
		sandboxes.HelperPath: func(ctx context.Context, p *dummy.Proc) int {
			switch task, err := io.ReadAll(p.Stdin); {
			case err != nil || string(task) == "fail":
				return 3
			case string(task) == "ask":
				return asks(1)(ctx, p)
			default:
				return 0
			}
		},
	}))
	b.serve(t, ok)
	for _, tt := range []struct {
		id    schema.ID
		agent schema.AgentChoice
		task  string
		code  string
	}{
		{"alpha-silent", schema.AgentChoice{Name: "mini"}, "/clear", schema.CodeNoCalls},
		{"alpha-asks", schema.AgentChoice{Name: "mini"}, "ask", ""},
		{"alpha-fails", schema.AgentChoice{Name: "mini"}, "fail", schema.CodeExit},
		{"alpha-command", schema.AgentChoice{Name: "command", Args: []string{"agent"}}, "/clear", ""},
		{"alpha-nop", schema.AgentChoice{Name: "nop"}, "/clear", ""},
	} {
		r := request(tt.id)
		r.Agent, r.Task.Instruction = tt.agent, tt.task
		checkFault(t, b.result(t, r), tt.code)
	}
	verify := &schema.Verify{Run: "verify"}
	r := request("alpha-steps")
	r.Agent, r.Verify = schema.AgentChoice{Name: "mini"}, nil
	r.Steps = []schema.Step{{Name: "one", Instruction: "ask", Verify: verify}, {Name: "two", Instruction: "/clear", Verify: verify}}
	res := b.result(t, r)
	checkFault(t, res, schema.CodeNoCalls)
	if len(res.Steps) != 2 || res.Steps[0].Fault != nil || res.Steps[1].Fault == nil {
		t.Errorf("steps %+v", res.Steps)
	}
}

func checkFault(t *testing.T, res schema.Result, code string) {
	t.Helper()
	got, who := "", schema.WhoAgent
	if res.Fault != nil {
		got, who = res.Fault.Code, res.Fault.Who
	}
	if res.Status != schema.StatusDone || got != code || who != schema.WhoAgent || res.Reward == nil || *res.Reward != 0.5 {
		t.Errorf("%s: %s, fault %v, reward %v", res.ID, res.Status, res.Fault, res.Reward)
	}
}
