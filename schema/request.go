package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Mode selects the way in which the agent's model calls are answered.
type Mode string

// The modes. ModeProxy and ModeBlack need model.upstream, a name in the
// worker's configuration.
const (
	ModeGate  Mode = "interception_gate" // the trainer answers
	ModeProxy Mode = "transparent_proxy" // the worker's gate forwards calls to an upstream
	ModeBlack Mode = "black_box"         // the agent calls the upstream itself
)

// Request asks for one rollout. A trainer publishes it; the rollout ends in
// exactly one Result.
type Request struct {
	V       int    `json:"v"`
	ID      ID     `json:"id"`
	Trainer string `json:"trainer"`
	Shard   string `json:"shard,omitempty"` // the trainer's process that answers calls; default "0"
	// Process is the instance of the process that submitted it, if that one keeps no file of
	// its rollouts: the result is lost when that process is gone, and the next process of the
	// shard may end the rollout. Empty: it stays.
	Process string `json:"process,omitempty"`
	Group   string `json:"group,omitempty"` // the same for rollouts of one prompt: any text that is new for the trainer
	Index   int    `json:"index,omitempty"` // this rollout's place in its group, from 0
	Mode    Mode   `json:"mode,omitempty"`  // default interception_gate

	Task    Task          `json:"task"`
	Agent   AgentChoice   `json:"agent"`
	Sandbox SandboxChoice `json:"sandbox"`
	Model   Model         `json:"model,omitzero"`
	Gate    GateOptions   `json:"gate,omitzero"`
	Limits  Limits        `json:"limits,omitzero"`
	Setup   []Command     `json:"setup,omitempty"`
	// Snapshot makes the rollouts of a group that run on one worker begin with the
	// files of one setup, where the backend can copy a sandbox. Processes that the
	// setup left are ended then. Without group it has no effect.
	Snapshot bool `json:"snapshot,omitempty"`
	// Healthcheck must succeed in the new sandbox before Setup runs. A sandbox that
	// begins with a snapshot is not checked again.
	Healthcheck *Healthcheck `json:"healthcheck,omitempty"`
	// Verify describes the verifier, which finds the reward. Nil: the rollout is
	// not verified. A request with steps has a Verify in each step instead.
	Verify *Verify `json:"verify,omitempty"`
	// Artifacts are kept in addition to /logs/agent and /logs/artifacts. With
	// steps they are kept after each step.
	Artifacts []ArtifactRule `json:"artifacts,omitempty"`

	// Steps are the parts of a task with several instructions. They replace
	// task.instruction and verify.
	Steps      []Step `json:"steps,omitempty"`
	StepReward string `json:"step_reward,omitempty"` // mean (default) or final

	MaxAttempts  int               `json:"max_attempts,omitempty"` // default 3
	AttemptFloor int               `json:"attempt_floor,omitempty"`
	DelayMS      int64             `json:"delay_ms,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// Task is the task of the agent. Its files come from the bundle, never from a
// path on the worker.
type Task struct {
	Name        string `json:"name"`
	Instruction string `json:"instruction"`
	// Bundle is the sha256 (hex) of a tar.zst in the object store "tasks".
	// Empty means the task has no files.
	Bundle string `json:"bundle,omitempty"`
	// Notes list the parts of the task that differ from the author's version.
	// They come first in the result's notes.
	Notes []string `json:"notes,omitempty"`
}

// MaxNotes is the largest number of notes of a result.
const MaxNotes = 64

// AgentChoice names the agent and describes its start.
type AgentChoice struct {
	Name         string            `json:"name"`
	Version      string            `json:"version,omitempty"` // default: the worker's pinned version
	Args         []string          `json:"args,omitempty"`    // added to its argv; the whole argv for "command"
	Env          map[string]string `json:"env,omitempty"`
	SystemPrompt string            `json:"system_prompt,omitempty"`
	MaxTurns     int               `json:"max_turns,omitempty"`
	User         string            `json:"user,omitempty"` // user in the sandbox; default sandbox.user
	// Network and Allow are the agent's network; default sandbox.network and
	// sandbox.allow.
	Network string      `json:"network,omitempty"`
	Allow   []string    `json:"allow,omitempty"`
	MCP     []MCPServer `json:"mcp,omitempty"` // servers of tools for the agent
	// SkillsDir is a folder in the sandbox. The agent gets its entries as skills.
	SkillsDir string `json:"skills_dir,omitempty"`
	// Tools are run by the trainer. The agent reaches them through an MCP server
	// named "trainer"; it cannot call any other tool of the trainer.
	Tools []ToolSpec `json:"tools,omitempty"`
}

// Model describes the model to the agent.
type Model struct {
	Name     string          `json:"name,omitempty"` // default "policy"
	Sampling json.RawMessage `json:"sampling,omitempty"`
	Upstream string          `json:"upstream,omitempty"` // a name in the worker's configuration
}

// GateOptions bound and shape the agent's model calls.
type GateOptions struct {
	Stream      string `json:"stream,omitempty"`       // buffer (default) or pass
	MaxCalls    int    `json:"max_calls,omitempty"`    // 0: 1000
	MaxTokens   int64  `json:"max_tokens,omitempty"`   // completion tokens of all calls; 0: no cap
	MaxRepeats  int    `json:"max_repeats,omitempty"`  // calls in a row with the same prompt, or with the same answer to the agent's own turns; default 20
	MaxParallel int    `json:"max_parallel,omitempty"` // default 8; more wait
	WaitMS      int64  `json:"wait_ms,omitempty"`      // longest wait of a call without a trainer; default 1 800 000
	// Routes send the calls of a tag to another place than the agent's turns, so
	// that titles and summaries need not use the policy. Keys are tags.
	Routes SortedMap[Route] `json:"routes,omitempty"`
}

// Route is the destination of the calls of one tag. Exactly one field is set.
type Route struct {
	Shard    string `json:"shard,omitempty"`    // another of the trainer's processes
	Upstream string `json:"upstream,omitempty"` // an upstream in the worker's configuration
	Reply    string `json:"reply,omitempty"`    // a fixed text; no call is sent
}

// Values of GateOptions.Stream.
const (
	StreamBuffer = "buffer" // the agent gets an answer when it is complete
	StreamPass   = "pass"   // the agent gets each piece as it arrives
)

// Limits are the durations of each stage in milliseconds. 0 means the default.
type Limits struct {
	ReadyMS   int64 `json:"ready_ms,omitempty"`
	InstallMS int64 `json:"install_ms,omitempty"`
	SetupMS   int64 `json:"setup_ms,omitempty"`
	AgentMS   int64 `json:"agent_ms,omitempty"`
	VerifyMS  int64 `json:"verify_ms,omitempty"`
}

// LifeMS returns the longest life of a sandbox of this request in milliseconds:
// the sum of the limits of all stages, steps, health checks and hooks, of
// gate.wait_ms for each verification by the trainer, and of 300 s.
func (r *Request) LifeMS() int64 {
	l := r.Limits
	all := l.ReadyMS + l.InstallMS + l.SetupMS + r.Healthcheck.longestMS() + 300_000
	if len(r.Steps) == 0 {
		return all + l.AgentMS + l.VerifyMS + r.Verify.besideMS(l) + r.verifierMS(r.Verify)
	}
	for _, s := range r.Steps {
		all += l.SetupMS + s.Healthcheck.longestMS() + cmp.Or(s.AgentMS, l.AgentMS) + cmp.Or(s.VerifyMS, l.VerifyMS) + s.Verify.besideMS(l) + r.verifierMS(s.Verify)
	}
	return all
}

// verifierMS returns the longest wait for a trainer that verifies, in
// milliseconds. The sandbox waits, too.
func (r *Request) verifierMS(v *Verify) int64 {
	if v == nil || v.By != VerifyByTrainer {
		return 0
	}
	return r.Gate.WaitMS
}

// Command is one command of the task, run by /bin/sh -c in the sandbox. It is
// the task author's own text, never assembled from parts.
type Command struct {
	Run  string            `json:"run"`
	User string            `json:"user,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
}

// DefaultShard is the shard of a request, and of a trainer's process, without one.
const DefaultShard = "0"

// WithDefaults returns the request with every absent field set to its default.
func (r Request) WithDefaults() Request {
	r.V = cmp.Or(r.V, Version)
	r.Shard = cmp.Or(r.Shard, DefaultShard)
	r.Mode = cmp.Or(r.Mode, ModeGate)
	r.Sandbox = r.Sandbox.withDefaults()
	r.Model.Name = cmp.Or(r.Model.Name, "policy")
	r.Gate.Stream = cmp.Or(r.Gate.Stream, StreamBuffer)
	r.Gate.MaxCalls = cmp.Or(r.Gate.MaxCalls, 1000)
	r.Gate.MaxRepeats = cmp.Or(r.Gate.MaxRepeats, 20)
	r.Gate.MaxParallel = cmp.Or(r.Gate.MaxParallel, 8)
	r.Gate.WaitMS = cmp.Or(r.Gate.WaitMS, 1_800_000)
	r.Limits.ReadyMS = cmp.Or(r.Limits.ReadyMS, 15_000)
	r.Limits.InstallMS = cmp.Or(r.Limits.InstallMS, 240_000)
	r.Limits.SetupMS = cmp.Or(r.Limits.SetupMS, 300_000)
	r.Limits.AgentMS = cmp.Or(r.Limits.AgentMS, 900_000)
	r.Limits.VerifyMS = cmp.Or(r.Limits.VerifyMS, 600_000)
	r.MaxAttempts = cmp.Or(r.MaxAttempts, 3)
	r.Verify = r.Verify.withDefaults(r.Sandbox)
	if len(r.Steps) > 0 {
		r.StepReward = cmp.Or(r.StepReward, StepRewardMean)
		r.Steps = slices.Clone(r.Steps)
		for i := range r.Steps {
			r.Steps[i].Verify = r.Steps[i].Verify.withDefaults(r.Sandbox)
		}
	}
	return r
}

func (r *Request) check() error {
	id, err := ParseID(string(r.ID))
	if err != nil {
		return err
	}
	if err := CheckTrainer(r.Trainer); err != nil {
		return err
	}
	if id.Trainer() != r.Trainer {
		return invalid("id", r.ID, fmt.Sprintf("must begin with its trainer, %q", r.Trainer+"-"))
	}
	if r.Shard != "" {
		if err := CheckToken("shard", r.Shard); err != nil {
			return err
		}
	}
	if r.Process != "" {
		if err := CheckToken("process", r.Process); err != nil {
			return err
		}
	}
	if r.Mode != "" {
		if err := checkOneOf("mode", string(r.Mode), string(ModeGate), string(ModeProxy), string(ModeBlack)); err != nil {
			return err
		}
	}
	if asksUpstream := r.Mode != "" && r.Mode != ModeGate; asksUpstream != (r.Model.Upstream != "") {
		return invalid("model.upstream", r.Model.Upstream, fmt.Sprintf("a name with mode %s or %s, and none with %s", ModeProxy, ModeBlack, ModeGate))
	}
	if network, _ := r.AgentNetwork(nil); r.Mode == ModeBlack && network != NetworkOpen {
		return invalid("sandbox.network", network, fmt.Sprintf("%s: with mode %s the agent calls its model itself", NetworkOpen, ModeBlack))
	}
	for _, check := range []func() error{
		r.Task.validate, r.Agent.validate, r.validateSandbox, r.Model.validate, r.Gate.validate, r.Limits.validate, r.validateRest,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Request) validateSandbox() error {
	if err := CheckToken("sandbox.backend", r.Sandbox.Backend); err != nil {
		return err
	}
	if err := r.Sandbox.validate("sandbox"); err != nil {
		return err
	}
	if asked := r.SandboxNetworks(); len(r.Sandbox.Services) > 0 && slices.Contains(asked, NetworkOpen) {
		for _, network := range asked {
			if network != NetworkOpen {
				return invalid("sandbox.network", network, "open for every phase or for none: with side-cars all phases in the sandbox have one network")
			}
		}
	}
	return nil
}

func (r *Request) validateRest() error {
	if err := checkText("group", r.Group, maxName); err != nil {
		return err
	}
	if err := checkCount("setup", len(r.Setup), maxList); err != nil {
		return err
	}
	for i, c := range r.Setup {
		if err := c.validate(fmt.Sprintf("setup[%d]", i)); err != nil {
			return err
		}
	}
	if err := r.Healthcheck.validate("healthcheck"); err != nil {
		return err
	}
	if err := r.Verify.validate("verify"); err != nil {
		return err
	}
	if err := validateArtifacts("artifacts", r.Artifacts); err != nil {
		return err
	}
	if err := r.validateSteps(); err != nil {
		return err
	}
	for _, n := range []struct {
		field     string
		v         int64
		low, high int64
	}{
		{"index", int64(r.Index), 0, 1 << 30},
		{"max_attempts", int64(r.MaxAttempts), 0, 100},
		{"attempt_floor", int64(r.AttemptFloor), 0, 1 << 30},
		{"delay_ms", r.DelayMS, 0, maxDurationMS},
	} {
		if err := checkRange(n.field, n.v, n.low, n.high); err != nil {
			return err
		}
	}
	return checkEnvLike("labels", r.Labels, maxLabels)
}

func (t *Task) validate() error {
	if err := checkName("task.name", t.Name); err != nil {
		return err
	}
	if err := checkText("task.instruction", t.Instruction, maxInstruction); err != nil {
		return err
	}
	if err := checkCount("task.notes", len(t.Notes), MaxNotes); err != nil {
		return err
	}
	if err := checkTextList("task.notes", t.Notes, 1000); err != nil {
		return err
	}
	if t.Bundle == "" {
		return nil
	}
	return CheckSHA256("task.bundle", t.Bundle)
}

// CheckSHA256 checks that s is a sha256 in lower-case hex.
func CheckSHA256(field, s string) error {
	if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return invalid(field, s, "want a sha256 as 64 lower-case hex digits")
	}
	return nil
}

func (a *AgentChoice) validateTools() error {
	if err := checkCount("agent.mcp", len(a.MCP), maxList); err != nil {
		return err
	}
	if err := checkCount("agent.tools", len(a.Tools), maxList); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i := range a.Tools {
		field := fmt.Sprintf("agent.tools[%d]", i)
		if err := a.Tools[i].validate(field); err != nil {
			return err
		}
		if seen[a.Tools[i].Name] {
			return invalid(field+".name", a.Tools[i].Name, "a name of its own")
		}
		seen[a.Tools[i].Name] = true
	}
	seen = map[string]bool{ToolServer: len(a.Tools) > 0}
	for i, m := range a.MCP {
		field := fmt.Sprintf("agent.mcp[%d]", i)
		if err := CheckToken(field+".name", m.Name); err != nil {
			return err
		}
		if seen[m.Name] {
			return invalid(field+".name", m.Name, "a name of its own")
		}
		seen[m.Name] = true
		if err := m.validate(field); err != nil {
			return err
		}
	}
	return nil
}

func (a *AgentChoice) validate() error {
	if err := CheckToken("agent.name", a.Name); err != nil {
		return err
	}
	if err := checkText("agent.version", a.Version, maxName); err != nil {
		return err
	}
	if err := checkTextList("agent.args", a.Args, maxCommand); err != nil {
		return err
	}
	if err := checkEnv("agent.env", a.Env); err != nil {
		return err
	}
	if err := a.validateTools(); err != nil {
		return err
	}
	if err := checkText("agent.system_prompt", a.SystemPrompt, maxInstruction); err != nil {
		return err
	}
	if err := CheckUser("agent.user", a.User); err != nil {
		return err
	}
	if err := checkNetwork("agent", a.Network, a.Allow); err != nil {
		return err
	}
	if a.SkillsDir != "" {
		if err := CheckPath("agent.skills_dir", a.SkillsDir); err != nil {
			return err
		}
	}
	return checkRange("agent.max_turns", a.MaxTurns, 0, 1<<20)
}

func (m *Model) validate() error {
	if err := checkText("model.name", m.Name, maxName); err != nil {
		return err
	}
	if len(m.Sampling) > 0 && !json.Valid(m.Sampling) {
		return invalid("model.sampling", string(m.Sampling), "want a JSON object")
	}
	return checkText("model.upstream", m.Upstream, maxName)
}

func (g *GateOptions) validate() error {
	for tag, r := range g.Routes {
		field := "gate.routes." + tag
		if err := checkOneOf(field, tag, TagAux, TagSubagent); err != nil {
			return err
		}
		set := 0
		for _, v := range []string{r.Shard, r.Upstream, r.Reply} {
			if v != "" {
				set++
			}
		}
		if set != 1 {
			return invalid(field, fmt.Sprintf("%+v", r), "want exactly one of shard, upstream and reply")
		}
		if r.Shard != "" {
			if err := CheckToken(field+".shard", r.Shard); err != nil {
				return err
			}
		}
		if err := checkText(field+".upstream", r.Upstream, maxName); err != nil {
			return err
		}
		if err := checkText(field+".reply", r.Reply, maxText); err != nil {
			return err
		}
	}
	if g.Stream != "" {
		if err := checkOneOf("gate.stream", g.Stream, StreamBuffer, StreamPass); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		field   string
		v, high int64
	}{
		{"gate.max_calls", int64(g.MaxCalls), 1 << 30}, {"gate.max_tokens", g.MaxTokens, maxBytes},
		{"gate.max_repeats", int64(g.MaxRepeats), 1 << 30}, {"gate.max_parallel", int64(g.MaxParallel), 64}, {"gate.wait_ms", g.WaitMS, maxDurationMS},
	} {
		if err := checkRange(n.field, n.v, 0, n.high); err != nil {
			return err
		}
	}
	return nil
}

func (l *Limits) validate() error {
	for _, n := range []struct {
		field string
		v     int64
	}{
		{"limits.ready_ms", l.ReadyMS}, {"limits.install_ms", l.InstallMS}, {"limits.setup_ms", l.SetupMS},
		{"limits.agent_ms", l.AgentMS}, {"limits.verify_ms", l.VerifyMS},
	} {
		if err := checkRange(n.field, n.v, 0, maxDurationMS); err != nil {
			return err
		}
	}
	return nil
}

func (c *Command) validate(field string) error {
	if strings.TrimSpace(c.Run) == "" {
		return invalid(field+".run", c.Run, "must not be empty")
	}
	if err := checkText(field+".run", c.Run, maxCommand); err != nil {
		return err
	}
	if err := CheckUser(field+".user", c.User); err != nil {
		return err
	}
	return checkEnv(field+".env", c.Env)
}
