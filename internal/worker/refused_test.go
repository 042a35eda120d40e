package worker_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/schema"
)

// TestAnAgentWhoseLastCallWasRefused: such an agent has a fault with the reason of the
// refusal, whatever its exit status is. An agent that goes on after a refusal has none.
func TestAnAgentWhoseLastCallWasRefused(t *testing.T) {
	t.Parallel()
	says := func(code int, questions ...string) dummy.Program {
		return func(ctx context.Context, p *dummy.Proc) int {
			for _, q := range questions {
				request := map[string]any{"model": p.Env["TURNGATE_MODEL"], "messages": []any{map[string]string{"role": "user", "content": q}}}
				if q == "unreadable" {
					request["n"] = 2
				}
				if status, _ := chat(ctx, p, request); (status == http.StatusOK) != (q == "good") {
					return 99
				}
			}
			return code
		}
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("0.5")}, map[string]dummy.Program{
		"hides": says(0, "good", "bad"), "tells": says(1, "good", "bad"), "writes": says(0, "good", "unreadable"), "goes-on": says(0, "bad", "unreadable", "good"), "fails": says(1, "bad", "good"),
	}))
	b.serve(t, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
		if strings.Contains(string(c.Messages[0]), "bad") {
			return nil, &schema.Fault{Code: schema.CodeUpstream, Message: "upstream lab: refused: the engine's words", Status: http.StatusBadRequest}
		}
		return ok(ctx, c)
	})
	for agent, want := range map[string]struct{ code, words string }{
		"hides": {schema.CodeRefused, "exit status 0; its last model call was refused: upstream lab: refused: the engine's words"}, "tells": {schema.CodeRefused, "exit status 1; its last model call was refused: upstream lab: refused: the engine's words"},
		"writes": {schema.CodeRefused, "only one answer a call is supported"}, "goes-on": {}, "fails": {schema.CodeExit, "exit status 1"},
	} {
		r := request(schema.ID("alpha-" + agent))
		r.Agent.Args[0] = agent
		res := b.result(t, r)
		checkFault(t, res, want.code)
		if res.Fault != nil && !strings.Contains(res.Fault.Message, want.words) {
			t.Errorf("%s: %s", agent, res.Fault.Message)
		}
	}
}
