package tasks

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// agentConfig is the [agent] table of the task or of a step.
type agentConfig struct {
	TimeoutSec *float64 `toml:"timeout_sec"`
	User       any      `toml:"user"`
	networkConfig
}

// verifierConfig is the [verifier] table of the task or of a step.
type verifierConfig struct {
	TimeoutSec      *float64           `toml:"timeout_sec"`
	Env             map[string]string  `toml:"env"`
	User            any                `toml:"user"`
	EnvironmentMode string             `toml:"environment_mode"`
	Processes       string             `toml:"processes"`
	Environment     *environmentConfig `toml:"environment"`
	Collect         []collectConfig    `toml:"collect"`
	networkConfig
}

type collectConfig struct {
	Command    string  `toml:"command"`
	Service    string  `toml:"service"`
	TimeoutSec float64 `toml:"timeout_sec"`
	User       any     `toml:"user"`
}

// stepConfig is an entry of [[steps]].
type stepConfig struct {
	Name        string         `toml:"name"`
	Agent       agentConfig    `toml:"agent"`
	Verifier    verifierConfig `toml:"verifier"`
	MinReward   any            `toml:"min_reward"`
	Healthcheck *healthcheck   `toml:"healthcheck"`
	Artifacts   []any          `toml:"artifacts"`
}

type healthcheck struct {
	Command          string  `toml:"command"`
	IntervalSec      float64 `toml:"interval_sec"`
	TimeoutSec       float64 `toml:"timeout_sec"`
	StartPeriodSec   float64 `toml:"start_period_sec"`
	StartIntervalSec float64 `toml:"start_interval_sec"`
	Retries          int     `toml:"retries"`
}

type mcpConfig struct {
	Name      string   `toml:"name"`
	Transport string   `toml:"transport"`
	URL       string   `toml:"url"`
	Command   string   `toml:"command"`
	Args      []string `toml:"args"`
}

// Values of environment_mode.
const (
	verifierShared   = "shared"
	verifierSeparate = "separate"
)

// bad records an error for a value that is not valid.
func (t *Task) bad(field string, value any, want string) {
	t.problem(&Error{t.Dir, field, fmt.Sprintf("%v is not valid: want %s", value, want)})
}

// seconds converts a duration in seconds to milliseconds; 0 for nil.
func (t *Task) seconds(field string, s *float64) int64 {
	if s == nil {
		return 0
	}
	if *s <= 0 || math.IsNaN(*s) || *s > 30*24*3600 {
		t.bad(field, *s, "seconds above 0, at most 30 days")
		return 0
	}
	return max(int64(*s*1000), 1)
}

// health reads a health check. A number of 0 means the default, which for the
// start period is 0.
func (t *Task) health(field string, h *healthcheck) *schema.Healthcheck {
	if h == nil {
		return nil
	}
	if strings.TrimSpace(h.Command) == "" {
		t.bad(field+".command", `""`, "a shell command")
		return nil
	}
	out := &schema.Healthcheck{Run: h.Command, Retries: h.Retries}
	if h.Retries < 0 {
		t.bad(field+".retries", h.Retries, "0 or more")
	}
	for _, n := range []struct {
		key  string
		from float64
		to   *int64
	}{
		{"interval_sec", h.IntervalSec, &out.IntervalMS}, {"timeout_sec", h.TimeoutSec, &out.TimeoutMS},
		{"start_period_sec", h.StartPeriodSec, &out.StartPeriodMS}, {"start_interval_sec", h.StartIntervalSec, &out.StartIntervalMS},
	} {
		if n.from != 0 {
			*n.to = t.seconds(field+"."+n.key, &n.from)
		}
	}
	return out
}

// artifacts reads the list of artifacts. An entry is a path or a table.
func (t *Task) artifacts(field string, list []any) []schema.ArtifactRule {
	var out []schema.ArtifactRule
	for i, v := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch v := v.(type) {
		case string:
			out = append(out, schema.ArtifactRule{Source: v})
		case map[string]any:
			out = append(out, t.artifact(at, v))
		default:
			t.bad(at, v, "a path, or a table with source")
		}
	}
	return out
}

func (t *Task) artifact(at string, table map[string]any) (a schema.ArtifactRule) {
	text := map[string]*string{"source": &a.Source, "destination": &a.Destination, "service": &a.Service}
	for key, v := range table {
		s, isText := v.(string)
		list, isList := v.([]any)
		switch {
		case text[key] != nil && isText:
			*text[key] = s
		case key == "exclude" && isList:
			for i, e := range list {
				pattern, ok := e.(string)
				if !ok {
					t.bad(fmt.Sprintf("%s.exclude[%d]", at, i), e, "a pattern")
				}
				a.Exclude = append(a.Exclude, pattern)
			}
		case text[key] != nil || key == "exclude":
			t.bad(at+"."+key, v, "a string, or a list of strings for exclude")
		default:
			t.Warnings = append(t.Warnings, "task.toml: "+at+"."+key+" is an unknown key and has no effect")
		}
	}
	if a.Source == "" {
		t.bad(at+".source", `""`, "a path in the sandbox")
	}
	return a
}

// mcp reads the list of MCP servers.
func (t *Task) mcp(list []mcpConfig) []schema.MCPServer {
	var out []schema.MCPServer
	for i, m := range list {
		at := fmt.Sprintf("environment.mcp_servers[%d]", i)
		s := schema.MCPServer{Name: m.Name, URL: m.URL, Transport: cmp.Or(m.Transport, schema.TransportSSE)}
		switch s.Transport {
		case schema.TransportStdio:
			if m.Command == "" {
				t.bad(at+".command", `""`, "a program, with transport stdio")
			}
			s.URL, s.Command = "", append([]string{m.Command}, m.Args...)
		case schema.TransportSSE, schema.TransportHTTP, "http":
			if m.URL == "" {
				t.bad(at+".url", `""`, "a URL, with transport "+s.Transport)
			}
			if s.Transport == "http" {
				s.Transport = schema.TransportHTTP
			}
		default:
			t.bad(at+".transport", m.Transport, "stdio, sse or streamable-http")
		}
		out = append(out, s)
	}
	return out
}

// verify returns the settings of the verifier of the task or of a step; nil if
// there are no tests. tests lists the folders of tests: a step's before the
// task's.
func (t *Task) verify(c *config, step *stepConfig, at string, o Options, tests ...string) *schema.Verify {
	all, v := []verifierConfig{c.Verifier}, &schema.Verify{RewardKey: c.Turngate.RewardKey}
	fields := []string{"verifier"}
	if step != nil {
		all, fields = append(all, step.Verifier), append(fields, at+".verifier")
	}
	mode := verifierShared
	for i, from := range all {
		v.User = cmp.Or(t.user(fields[i]+".user", from.User), v.User)
		if env := t.expand(fields[i]+".env", from.Env); len(env) > 0 {
			if v.Env == nil {
				v.Env = map[string]string{}
			}
			maps.Copy(v.Env, env)
		}
		if network, allow := t.network(fields[i], from.networkConfig); network != "" {
			v.Network, v.Allow = network, allow
		}
		for j, h := range from.Collect {
			v.Collect = append(v.Collect, t.hook(fmt.Sprintf("%s.collect[%d]", fields[i], j), h))
		}
		mode = cmp.Or(t.mode(fields[i], from), mode)
		v.Processes = cmp.Or(t.processes(fields[i], from), v.Processes)
	}
	if o.Verifier == verifierSeparate {
		mode = verifierSeparate
	}
	if mode == verifierSeparate {
		t.separate(c, v, step, tests)
	}
	if v.Bundled {
		return v
	}
	for _, dir := range tests {
		if exists(t.abs, dir+"/test.sh") {
			return v
		}
	}
	return nil
}

// processes returns the setting for processes of the agent of one table; empty if
// the table has none.
func (t *Task) processes(field string, v verifierConfig) string {
	if v.Processes != "" && v.Processes != schema.ProcessesKeep && v.Processes != schema.ProcessesEnd {
		t.bad(field+".processes", v.Processes, "keep or end")
	}
	return v.Processes
}

// mode returns the environment mode of one table; empty if the table has none.
func (t *Task) mode(field string, v verifierConfig) string {
	switch v.EnvironmentMode {
	case "":
		if v.Environment != nil {
			return verifierSeparate
		}
	case verifierShared:
		if v.Environment != nil {
			t.problem(&Error{t.Dir, field + ".environment_mode", `"shared" excludes an environment of the verifier: remove one of the two`})
		}
	case verifierSeparate:
	default:
		t.bad(field+".environment_mode", v.EnvironmentMode, "shared or separate")
	}
	return v.EnvironmentMode
}

// separate describes the second sandbox. Its settings come from the
// [verifier.environment] of the step, or of the task, or from the agent's
// environment. Its image is the first of: docker_image or the tests' Dockerfile
// of the step, the same of the task, the agent's image. A compose file in the
// folder of the tests may set the image too, and adds side-cars. The agent's
// side-cars and mounts belong to the agent's image and come with it alone.
func (t *Task) separate(c *config, v *schema.Verify, step *stepConfig, tests []string) {
	environments, fields := []*environmentConfig{c.Verifier.Environment}, []string{"verifier.environment"}
	if step != nil {
		environments = append([]*environmentConfig{step.Verifier.Environment}, environments...)
		fields = append([]string{"steps." + step.Name + ".verifier.environment"}, fields...)
	}
	choice := t.Request.Sandbox
	choice.Image, choice.Build = "", nil
	for i, env := range environments {
		if env != nil {
			choice = t.sandbox(fields[i], env)
			t.unusedBySecond(fields[i], env)
			from := &t.Request.Sandbox // its image comes with its services
			choice.Image, choice.Services, choice.Folders, choice.Container = "", from.Services, from.Folders, from.Container
			break
		}
	}
	v.Separate = &choice
	for i, env := range environments {
		if env != nil && env.DockerImage != "" {
			choice.Services, choice.Folders, choice.Container = nil, nil, schema.Container{}
			choice.Image, v.Bundled = env.DockerImage, true
			return
		}
		if exists(t.abs, tests[i]+"/Dockerfile") {
			choice.Services, choice.Folders, choice.Container = nil, nil, schema.Container{}
			choice.Build, v.Bundled = &schema.Build{Context: tests[i]}, true
		}
		if exists(t.abs, tests[i]+"/"+composeName) {
			choice.Services, choice.Folders, choice.Container = nil, nil, schema.Container{}
			t.compose(tests[i], &choice)
			v.Bundled = true
		}
		if v.Bundled {
			return
		}
	}
}

// unusedBySecond reports the keys that have no effect in the second sandbox.
func (t *Task) unusedBySecond(at string, env *environmentConfig) {
	for _, k := range []struct {
		key string
		set bool
	}{
		{"build_timeout_sec", env.BuildTimeoutSec != nil}, {"healthcheck", env.Healthcheck != nil}, {"mcp_servers", len(env.MCPServers) > 0}, {"skills_dir", env.SkillsDir != ""},
	} {
		text := "task.toml: " + at + "." + k.key + " has no effect"
		if k.set && !slices.Contains(t.Warnings, text) { // the task's table serves several steps
			t.Warnings = append(t.Warnings, text)
		}
	}
}

func (t *Task) hook(field string, c collectConfig) schema.Hook {
	h := schema.Hook{Run: c.Command, Service: c.Service, User: t.user(field+".user", c.User)}
	if strings.TrimSpace(c.Command) == "" {
		t.bad(field+".command", `""`, "a shell command")
	}
	if c.TimeoutSec != 0 {
		h.TimeoutMS = t.seconds(field+".timeout_sec", &c.TimeoutSec)
	}
	return h
}

// steps reads the task's steps.
func (t *Task) steps(c *config, o Options) {
	r := &t.Request
	switch r.StepReward = c.MultiStepRewardStrategy; {
	case r.StepReward != "" && r.StepReward != schema.StepRewardMean && r.StepReward != schema.StepRewardFinal:
		t.bad("multi_step_reward_strategy", r.StepReward, "mean or final")
	case r.StepReward != "" && len(c.Steps) == 0:
		t.problem(&Error{t.Dir, "multi_step_reward_strategy", "only with [[steps]]"})
	}
	for i := range c.Steps {
		from, at := &c.Steps[i], fmt.Sprintf("steps[%d]", i)
		if err := schema.CheckStepName(at+".name", from.Name); err != nil {
			t.problem(&Error{t.Dir, at + ".name", strings.TrimPrefix(err.Error(), at+".name: ")}) // the error names the field, too
			continue
		}
		folder := "steps/" + from.Name
		s := schema.Step{
			Name: from.Name, User: t.user(at+".agent.user", from.Agent.User), AgentMS: t.seconds(at+".agent.timeout_sec", from.Agent.TimeoutSec),
			VerifyMS: t.seconds(at+".verifier.timeout_sec", from.Verifier.TimeoutSec), Healthcheck: t.health(at+".healthcheck", from.Healthcheck),
			Artifacts: t.artifacts(at+".artifacts", from.Artifacts), MinReward: t.minReward(at+".min_reward", from.MinReward),
		}
		s.Instruction = t.instruction(folder + "/instruction.md")
		s.Network, s.Allow = t.network(at+".agent", from.Agent.networkConfig)
		s.Verify = t.verify(c, from, at, o, folder+"/tests", "tests")
		r.Steps = append(r.Steps, s)
	}
}

// instruction reads the file with the agent's instruction.
func (t *Task) instruction(file string) string {
	text, err := folder{t.abs}.read(file, maxInstructionFile)
	if err != nil {
		t.problem(&Error{t.Dir, file, reason(err)})
	} else if strings.TrimSpace(string(text)) == "" {
		t.problem(&Error{t.Dir, file, "it is empty"})
	}
	return string(text)
}

// minReward reads a minimum for "reward", or a table of minima by name.
func (t *Task) minReward(field string, v any) map[string]float64 {
	number := func(v any) (float64, bool) {
		switch n := v.(type) {
		case float64:
			return n, !math.IsNaN(n)
		case int64:
			return float64(n), true
		}
		return 0, false
	}
	table, isTable := v.(map[string]any)
	if v == nil {
		return nil
	}
	if !isTable {
		table = map[string]any{"reward": v}
	}
	out := map[string]float64{}
	for k, v := range table {
		n, ok := number(v)
		if !ok {
			t.bad(field, v, "a number, or a table of numbers")
		}
		out[k] = n
	}
	return out
}
