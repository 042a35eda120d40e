package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func TestStepsThatAreWrongNameTheField(t *testing.T) {
	for field, spoil := range map[string]func(*schema.Request){
		"verify":                         func(r *schema.Request) { r.Verify = &schema.Verify{} },
		"step_reward":                    func(r *schema.Request) { r.StepReward = "median" },
		"steps":                          func(r *schema.Request) { r.Steps = make([]schema.Step, 65) },
		"steps[0].name":                  func(r *schema.Request) { r.Steps[0].Name = "../etc" },
		"steps[1].name":                  func(r *schema.Request) { r.Steps[1].Name = "First" },
		"steps[0].user":                  func(r *schema.Request) { r.Steps[0].User = "$(id)" },
		"steps[0].env":                   func(r *schema.Request) { r.Steps[0].Env = map[string]string{"A B": ""} },
		"steps[0].network":               func(r *schema.Request) { r.Steps[0].Network = "host" },
		"steps[0].agent_ms":              func(r *schema.Request) { r.Steps[0].AgentMS = -1 },
		"steps[0].verify_ms":             func(r *schema.Request) { r.Steps[0].VerifyMS = -1 },
		"steps[0].healthcheck.run":       func(r *schema.Request) { r.Steps[0].Healthcheck = &schema.Healthcheck{} },
		"steps[0].healthcheck.retries":   func(r *schema.Request) { r.Steps[0].Healthcheck.Retries = -1 },
		"steps[0].verify.bundled":        func(r *schema.Request) { r.Steps[0].Verify.Bundled = true },
		"steps[0].verify.separate.image": func(r *schema.Request) { r.Steps[0].Verify.Separate = &schema.SandboxChoice{Image: "-x"} },
		"steps[0].verify.collect[0].run": func(r *schema.Request) { r.Steps[0].Verify.Collect = []schema.Hook{{}} },
		"steps[0].artifacts[0].source":   func(r *schema.Request) { r.Steps[0].Artifacts = []schema.ArtifactRule{{Source: "a/../../b"}} },
		"healthcheck.timeout_ms":         func(r *schema.Request) { r.Healthcheck.TimeoutMS = -1 },
		"artifacts[0].destination":       func(r *schema.Request) { r.Artifacts[0].Destination = "manifest.json" },
		"artifacts[1].source":            func(r *schema.Request) { r.Artifacts[1].Source = "db" },
		"artifacts[1].service":           func(r *schema.Request) { r.Artifacts[1].Service = "a b" },
		"agent.skills_dir":               func(r *schema.Request) { r.Agent.SkillsDir = "skills" },
		"agent.mcp[0].command":           func(r *schema.Request) { r.Agent.MCP[0].Command = nil },
		"agent.mcp[0].transport":         func(r *schema.Request) { r.Agent.MCP[0].Transport = schema.TransportSSE },
		"agent.mcp[1].transport":         func(r *schema.Request) { r.Agent.MCP[1].Transport = "" },
		"agent.mcp[1].url":               func(r *schema.Request) { r.Agent.MCP[1].URL = "file:///etc/passwd" },
	} {
		t.Run(field, func(t *testing.T) {
			r := samples()["request_steps"].(*schema.Request)
			spoil(r)
			_, err := schema.Encode(r)
			var bad *schema.InvalidError
			if !errors.As(err, &bad) || bad.Field != field {
				t.Fatalf("got %v, want an InvalidError for %s", err, field)
			}
		})
	}
}

func TestNamesOfStepsAreFolders(t *testing.T) {
	for _, ok := range []string{"one", "step 1", "erste-Stufe_2", "é"} {
		if err := schema.CheckStepName("name", ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", " ", ".", "..", "a/b", `a\b`, "a.", "a ", "a\x00b", "a:b", strings.Repeat("x", 256)} {
		if schema.CheckStepName("name", bad) == nil {
			t.Errorf("%q is not refused", bad)
		}
	}
}

func TestTheLifeOfASandboxHasRoomForEveryStep(t *testing.T) {
	r := schema.Request{ID: "alpha-1", Trainer: "alpha", Steps: []schema.Step{{Name: "a"}, {Name: "b", AgentMS: 1, VerifyMS: 2}}}.WithDefaults()
	if got, want := r.LifeMS(), int64(15_000+240_000+300_000+300_000+(300_000+900_000+600_000)+(300_000+1+2)); got != want {
		t.Fatalf("got %d, want %d", got, want)
	}
	r.Healthcheck = &schema.Healthcheck{Run: "true", StartPeriodMS: 7}
	r.Steps[0].Verify = &schema.Verify{Collect: []schema.Hook{{Run: "true"}, {Run: "true", TimeoutMS: 3}}, Separate: &schema.SandboxChoice{}}
	before := int64(15_000 + 240_000 + 300_000 + 300_000 + (300_000 + 900_000 + 600_000) + (300_000 + 1 + 2))
	if got, want := r.LifeMS()-before, int64(7+5_000+30_000+3*35_000+60_000+3+240_000+15_000+300_000); got != want {
		t.Fatalf("health checks, hooks and a second sandbox add %d, want %d", got, want)
	}
	if r.StepReward != schema.StepRewardMean {
		t.Fatalf("got %q", r.StepReward)
	}
}
