package worker_test

import (
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/schema"
)

// TestAUserThatASandboxLacksIsNamed runs each request once: another try cannot
// help.
func TestAUserThatASandboxLacksIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}))
	b.backend.Absent = []string{"ghost"}
	b.serve(t, ok)
	step := func(s schema.Step) []schema.Step {
		s.Name, s.Instruction = "one", "x"
		return []schema.Step{s}
	}
	for field, change := range map[string]func(*schema.Request){
		"agent.user":    func(r *schema.Request) { r.Agent.User = "ghost" },
		"sandbox.user":  func(r *schema.Request) { r.Sandbox.User = "ghost" },
		"verify.user":   func(r *schema.Request) { r.Verify.User = "ghost" },
		"steps[0].user": func(r *schema.Request) { r.Verify, r.Steps = nil, step(schema.Step{User: "ghost"}) },
		"steps[1].user": func(r *schema.Request) {
			r.Verify, r.Steps = nil, append(step(schema.Step{}), schema.Step{Name: "two", Instruction: "x", User: "ghost"})
		},
		"steps[0].verify.user": func(r *schema.Request) {
			r.Steps, r.Verify = step(schema.Step{Verify: &schema.Verify{Run: "verify", User: "ghost"}}), nil
		},
		"verify.separate.user": func(r *schema.Request) { r.Verify.Separate = &schema.SandboxChoice{Backend: "dummy", User: "ghost"} },
		"verify.user: separated": func(r *schema.Request) {
			r.Verify.User, r.Verify.Separate = "ghost", &schema.SandboxChoice{Backend: "dummy"}
		},
	} {
		t.Run(field, func(t *testing.T) {
			id, err := schema.NewID("alpha", field)
			if err != nil {
				t.Fatal(err)
			}
			r := request(id)
			change(&r)
			res := b.result(t, r)
			want, _, _ := strings.Cut(field, ": ")
			if f := res.Fault; res.Attempt != 1 || f == nil || f.Code != schema.CodeMissing || f.Who != schema.WhoTask || !strings.HasPrefix(f.Message, want+`: "ghost" is not valid: it is absent; want `) {
				t.Errorf("attempt %d, status %s, fault %v", res.Attempt, res.Status, f)
			}
		})
	}
}
