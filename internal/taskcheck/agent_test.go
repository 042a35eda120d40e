package taskcheck_test

import (
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/taskcheck"
	"github.com/turngate/turngate/schema"
)

func TestJudgeAgent(t *testing.T) {
	one, zero := 1.0, 0.0
	calls := schema.SortedMap[schema.CallStats]{schema.TagAgent: {Count: 2}}
	for want, r := range map[string]schema.Result{
		"":                      {Status: schema.StatusDone, Reward: &one, Calls: calls},
		"did not run":           {Status: schema.StatusDone, Reward: &zero, Calls: calls, Exit: &schema.Exit{Code: 3}},
		"without a call":        {Status: schema.StatusDone, Reward: &zero},
		"agent: exit: it broke": {Status: schema.StatusFailed, Fault: schema.Faultf("agent", schema.CodeExit, schema.WhoAgent, "it broke")},
		"cancelled":             {Status: schema.StatusCancelled},
	} {
		if got := taskcheck.JudgeAgent(&r); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	q := taskcheck.AgentRequest("mini", "local", time.Minute).WithDefaults()
	q.Trainer, q.ID = "local", "local-1"
	if err := schema.Validate(&q); err != nil {
		t.Error(err)
	}
}
