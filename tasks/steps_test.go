package tasks_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

const stepped = `
schema_version = "1.4"
multi_step_reward_strategy = "final"
artifacts = ["/app/out.txt", { source = "/app", destination = "state", exclude = ["*.log"] }]
[agent]
timeout_sec = 50
user = "worker"
[verifier]
timeout_sec = 40
env = { A = "task", B = "task" }
user = "judge"
[[verifier.collect]]
command = "dump > /app/out.txt"
timeout_sec = 5
user = 7
[environment]
docker_image = "debian:12"
memory_mb = 64
skills_dir = "/skills"
[[environment.mcp_servers]]
name = "far"
url = "http://tools:8000/sse"
[[environment.mcp_servers]]
name = "near"
transport = "stdio"
command = "/bin/rec"
args = ["a b"]
[[environment.mcp_servers]]
name = "http"
transport = "http"
url = "http://tools:8000/mcp"
[environment.healthcheck]
command = "test -e /ready"
interval_sec = 0.5
start_period_sec = 2
[[steps]]
name = "first"
min_reward = 0.5
artifacts = ["/app/first"]
[steps.agent]
timeout_sec = 10
user = "other"
network_mode = "no-network"
[steps.verifier]
timeout_sec = 20
env = { B = "step" }
[[steps.verifier.collect]]
command = "true"
[steps.healthcheck]
command = "true"
[[steps]]
name = "second"
min_reward = { reward = 1, style = 0.25 }
[steps.verifier]
environment_mode = "separate"
[[steps]]
name = "third"
[steps.verifier.environment]
docker_image = "judge:1"
cpus = 2
`

func TestATaskOfSteps(t *testing.T) {
	files := map[string]string{"task.toml": stepped, "tests/test.sh": "true\n", "steps/second/tests/Dockerfile": "FROM x\n"}
	for _, s := range []string{"first", "second", "third"} {
		files["steps/"+s+"/instruction.md"] = "Do the " + s + ".\n"
	}
	task, err := tasks.Load(write(t, t.TempDir(), files), tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := task.Request
	r.ID, r.Trainer, r.Agent.Name, r.Sandbox.Backend = "alpha-1", "alpha", "mini", "docker"
	if err := schema.Validate(&r); err != nil {
		t.Fatal(err)
	}
	if len(task.Warnings) > 0 || r.Verify != nil || r.StepReward != schema.StepRewardFinal || r.Agent.SkillsDir != "/skills" || len(r.Steps) != 3 {
		t.Fatalf("got %+v, warnings %q", r, task.Warnings)
	}
	if want := []schema.ArtifactRule{{Source: "/app/out.txt"}, {Source: "/app", Destination: "state", Exclude: []string{"*.log"}}}; !reflect.DeepEqual(r.Artifacts, want) {
		t.Errorf("artifacts %+v", r.Artifacts)
	}
	if want := []schema.MCPServer{
		{Name: "far", URL: "http://tools:8000/sse", Transport: schema.TransportSSE}, {Name: "near", Command: []string{"/bin/rec", "a b"}, Transport: schema.TransportStdio},
		{Name: "http", URL: "http://tools:8000/mcp", Transport: schema.TransportHTTP},
	}; !reflect.DeepEqual(r.Agent.MCP, want) {
		t.Errorf("MCP servers %+v", r.Agent.MCP)
	}
	if want := (schema.Healthcheck{Run: "test -e /ready", IntervalMS: 500, StartPeriodMS: 2000}); r.Healthcheck == nil || *r.Healthcheck != want {
		t.Errorf("health check %+v", r.Healthcheck)
	}
	first, second, third := r.Steps[0], r.Steps[1], r.Steps[2]
	if first.Instruction != "Do the first.\n" || first.User != "other" || first.AgentMS != 10_000 || first.VerifyMS != 20_000 || first.Network != schema.NetworkNone || first.Healthcheck == nil ||
		!reflect.DeepEqual(map[string]float64(first.MinReward), map[string]float64{"reward": 0.5}) || len(first.Artifacts) != 1 {
		t.Errorf("first: %+v", first)
	}
	want := &schema.Verify{
		User: "judge", Env: map[string]string{"A": "task", "B": "step"},
		Collect: []schema.Hook{{Run: "dump > /app/out.txt", User: "7", TimeoutMS: 5000}, {Run: "true"}},
	}
	if !reflect.DeepEqual(first.Verify, want) {
		t.Errorf("first: %+v", first.Verify)
	}
	if v := second.Verify; v == nil || v.Separate == nil || !v.Bundled || v.Separate.Build == nil || v.Separate.Build.Context != "steps/second/tests" || v.Separate.MemoryBytes != 64<<20 || v.Env["B"] != "task" {
		t.Errorf("second: %+v", v)
	}
	if v := third.Verify; v == nil || v.Separate == nil || !v.Bundled || v.Separate.Image != "judge:1" || v.Separate.CPUs != 2 || v.Separate.MemoryBytes != 0 {
		t.Errorf("third: %+v", v)
	}
	if !reflect.DeepEqual(map[string]float64(second.MinReward), map[string]float64{"reward": 1, "style": 0.25}) {
		t.Errorf("got %v", second.MinReward)
	}
}

func TestWhereAVerifierRuns(t *testing.T) {
	const artifact = "artifacts = ['/app']\n"
	for name, c := range map[string]struct {
		toml, flag string
		file       string
		separate   bool
		bundled    bool
		image      string // after defaults
		context    string
		bad        string
	}{
		"shared":                         {},
		"said":                           {toml: "[verifier]\nenvironment_mode = 'shared'"},
		"a copy of the environment":      {toml: "[environment]\ndocker_image = 'a'\n[verifier]\nenvironment_mode = 'separate'", separate: true, image: "a"},
		"an environment alone":           {toml: "[environment]\ndocker_image = 'a'\n[verifier.environment]\ncpus = 1", separate: true, image: "a"},
		"its own image":                  {toml: "[environment]\ndocker_image = 'a'\n[verifier.environment]\ndocker_image = 'b'", separate: true, bundled: true, image: "b"},
		"a Dockerfile beside the tests":  {toml: "[environment]\ndocker_image = 'a'\n[verifier]\nenvironment_mode = 'separate'", file: "tests/Dockerfile", separate: true, bundled: true, context: "tests"},
		"an image before the Dockerfile": {toml: "[verifier.environment]\ndocker_image = 'b'", file: "tests/Dockerfile", separate: true, bundled: true, image: "b"},
		"by flag":                        {toml: artifact + "[environment]\ndocker_image = 'a'", flag: "separate", separate: true, image: "a"},
		"by flag without artifacts":      {toml: "[environment]\ndocker_image = 'a'", flag: "separate", bad: "artifacts"},
		"both":                           {toml: "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1", bad: "verifier.environment_mode"},
		"unknown":                        {toml: "[verifier]\nenvironment_mode = 'moon'", bad: "verifier.environment_mode"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"instruction.md": "x", "task.toml": c.toml, "tests/test.sh": "true"}
			if c.file != "" {
				files[c.file] = "FROM x\n"
			}
			task, err := tasks.Load(write(t, t.TempDir(), files), tasks.Options{Verifier: c.flag})
			if c.bad != "" {
				var bad *tasks.Error
				if !errors.As(err, &bad) || bad.Field != c.bad {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := task.Request.WithDefaults()
			v := r.Verify
			if (v.Separate != nil) != c.separate || v.Bundled != c.bundled {
				t.Fatalf("got %+v", v)
			}
			if !c.separate {
				return
			}
			context := ""
			if v.Separate.Build != nil {
				context = v.Separate.Build.Context
			}
			if v.Separate.Image != c.image || context != c.context {
				t.Errorf("got %+v, context %q", v.Separate, context)
			}
		})
	}
}

func TestErrorsInStepsAreNamed(t *testing.T) {
	_, err := tasks.Load(write(t, t.TempDir(), map[string]string{
		"tests/test.sh": "true", "steps/ok/instruction.md": "x", "steps/blank/instruction.md": "\n",
		"task.toml": `
multi_step_reward_strategy = "median"
artifacts = [1, { destination = "x" }, { source = "/a", exclude = "b", colour = "red" }]
[[environment.mcp_servers]]
name = "a"
[[environment.mcp_servers]]
name = "b"
transport = "stdio"
[[environment.mcp_servers]]
name = "c"
transport = "pigeon"
[[verifier.collect]]
command = " "
[environment.healthcheck]
command = ""
[agent]
user = true
[verifier]
user = "a b"
[[steps]]
name = "../up"
[[steps]]
name = "ok"
min_reward = "much"
[steps.agent]
timeout_sec = 0
user = -1
[steps.healthcheck]
command = "x"
timeout_sec = -1
[[steps]]
name = "blank"
`,
	}), tasks.Options{})
	var fields []string
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range list.Unwrap() {
			var bad *tasks.Error
			if errors.As(e, &bad) {
				fields = append(fields, bad.Field)
			}
		}
	}
	slices.Sort(fields)
	want := "agent.user artifacts[0] artifacts[1].source artifacts[2].exclude environment.healthcheck.command environment.mcp_servers[0].url environment.mcp_servers[1].command " +
		"environment.mcp_servers[2].transport multi_step_reward_strategy steps/blank/instruction.md steps[0].name steps[1].agent.timeout_sec steps[1].agent.user steps[1].healthcheck.timeout_sec steps[1].min_reward verifier.collect[0].command verifier.user"
	if got := strings.Join(fields, " "); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}
