package worker_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/schema"
)

// TestAnAgentWhoseContextIsFull: the fault names the context if the agent ended after
// its call was too long, with any status, and not if a later call was answered.
func TestAnAgentWhoseContextIsFull(t *testing.T) {
	t.Parallel()
	gives := func(code int, questions ...string) dummy.Program {
		return func(ctx context.Context, p *dummy.Proc) int {
			for _, q := range questions {
				if status, text := ask(ctx, p, q); status != http.StatusOK && !strings.Contains(text, schema.CodeContext) {
					return 99
				}
			}
			return code
		}
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("0.5")}, map[string]dummy.Program{
		"gives up": gives(1, "short", "long"), "ends": gives(0, "long"), "compacts": gives(0, "long", "short"), "fails later": gives(1, "long", "short"),
	}))
	b.serve(t, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
		if strings.Contains(string(c.Messages[len(c.Messages)-1]), "long") {
			return nil, &schema.Fault{Code: schema.CodeContext, Message: "too long", Status: http.StatusBadRequest}
		}
		return ok(ctx, c)
	})
	for agent, code := range map[string]string{"gives up": schema.CodeContext, "ends": schema.CodeContext, "compacts": "", "fails later": schema.CodeExit} {
		r := request(schema.ID("alpha-" + strings.ReplaceAll(agent, " ", "-")))
		r.Agent.Args[0] = agent
		res := b.result(t, r)
		got := ""
		if res.Fault != nil {
			got = res.Fault.Code
		}
		if res.Status != schema.StatusDone || got != code || res.Reward == nil || *res.Reward != 0.5 {
			t.Errorf("%s: %s, %v, reward %v", agent, res.Status, res.Fault, res.Reward)
		}
	}
}
