package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// Mode says who answers the agent's model calls.
type Mode string

// The modes. The last two need model.upstream, a name that the worker's own
// configuration knows.
const (
	ModeGate  Mode = "interception_gate" // the trainer answers
	ModeProxy Mode = "transparent_proxy" // the worker's gate forwards to an upstream
	ModeBlack Mode = "black_box"         // the agent talks to the upstream itself
)

// Request asks for one rollout. A trainer publishes it; a worker that takes it
// answers with exactly one Result.
type Request struct {
	V       int    `json:"v"`
	ID      ID     `json:"id"`
	Trainer string `json:"trainer"`
	Shard   string `json:"shard,omitempty"` // which of the trainer's processes answers; default "0"
	Group   string `json:"group,omitempty"` // rollouts of one prompt
	Index   int    `json:"index,omitempty"` // this rollout's place in its group
	Mode    Mode   `json:"mode,omitempty"`  // default interception_gate

	Task      Task          `json:"task"`
	Agent     AgentChoice   `json:"agent"`
	Sandbox   SandboxChoice `json:"sandbox"`
	Model     Model         `json:"model,omitzero"`
	Gate      GateOptions   `json:"gate,omitzero"`
	Limits    Limits        `json:"limits,omitzero"`
	Setup     []Command     `json:"setup,omitempty"`
	Verify    *Verify       `json:"verify,omitempty"`
	Artifacts []string      `json:"artifacts,omitempty"` // paths in the sandbox to keep

	MaxAttempts  int               `json:"max_attempts,omitempty"` // default 3
	AttemptFloor int               `json:"attempt_floor,omitempty"`
	DelayMS      int64             `json:"delay_ms,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// Task is what the agent is to do. Files come from the bundle, never from a
// path on the worker.
type Task struct {
	Name        string `json:"name"`
	Instruction string `json:"instruction"`
	// Bundle is the sha256 (hex) of a tar.zst in the object store "tasks".
	// Empty means the task has no files.
	Bundle string `json:"bundle,omitempty"`
}

// AgentChoice names the agent and how it is started.
type AgentChoice struct {
	Name         string            `json:"name"`
	Version      string            `json:"version,omitempty"` // default: the worker's pinned one
	Args         []string          `json:"args,omitempty"`    // added to its argv; the whole argv for "command"
	Env          map[string]string `json:"env,omitempty"`
	SystemPrompt string            `json:"system_prompt,omitempty"`
	MaxTurns     int               `json:"max_turns,omitempty"`
	User         string            `json:"user,omitempty"` // user in the sandbox; default sandbox.user
	MCP          []MCPServer       `json:"mcp,omitempty"`  // servers of tools that the agent starts itself
	// Tools are run by the trainer. They reach the agent through an MCP server
	// named ToolServer; what is not listed cannot be called.
	Tools []ToolSpec `json:"tools,omitempty"`
}

// MCPServer is a server of the Model Context Protocol
// (https://modelcontextprotocol.io) that an agent starts in its sandbox and
// speaks to over stdin and stdout.
type MCPServer struct {
	Name    string            `json:"name"`
	Command []string          `json:"command"` // argv
	Env     map[string]string `json:"env,omitempty"`
}

// SandboxChoice says where the agent runs. A limit of 0 asks for none; a limit
// that the backend cannot enforce is refused by name.
type SandboxChoice struct {
	Backend     string            `json:"backend"`
	Image       string            `json:"image,omitempty"`
	Build       bool              `json:"build,omitempty"`   // build environment/Dockerfile of the bundle
	Network     string            `json:"network,omitempty"` // none (default), allowlist, open
	Allow       []string          `json:"allow,omitempty"`
	CPUs        float64           `json:"cpus,omitempty"`
	MemoryBytes int64             `json:"memory_bytes,omitempty"`
	DiskBytes   int64             `json:"disk_bytes,omitempty"`
	Pids        int64             `json:"pids,omitempty"`
	GPUs        int               `json:"gpus,omitempty"`
	User        string            `json:"user,omitempty"`    // default: the backend's
	Workdir     string            `json:"workdir,omitempty"` // default: the image's, or /workspace
	Env         map[string]string `json:"env,omitempty"`
}

// Networks that a sandbox may be asked to have.
const (
	NetworkNone      = "none"
	NetworkAllowlist = "allowlist"
	NetworkOpen      = "open"
)

// Model says what the agent is told about its model.
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
	MaxParallel int    `json:"max_parallel,omitempty"` // default 8; more wait
	WaitMS      int64  `json:"wait_ms,omitempty"`      // without a trainer; default 1 800 000
	// Routes send calls of a tag elsewhere than the agent's turns: titles and
	// summaries need not cost the policy anything.
	Routes SortedMap[Route] `json:"routes,omitempty"`
}

// Route says who answers the calls of one tag. Exactly one field is set.
type Route struct {
	Shard    string `json:"shard,omitempty"`    // another of the trainer's processes
	Upstream string `json:"upstream,omitempty"` // an engine of the worker's configuration
	Reply    string `json:"reply,omitempty"`    // this text, and nobody is asked
}

// How a streamed answer reaches the agent.
const (
	StreamBuffer = "buffer" // released when it is complete
	StreamPass   = "pass"   // released as it comes
)

// Limits are the durations of each stage in milliseconds. 0 means the default
// that WithDefaults fills in.
type Limits struct {
	ReadyMS   int64 `json:"ready_ms,omitempty"`
	InstallMS int64 `json:"install_ms,omitempty"`
	SetupMS   int64 `json:"setup_ms,omitempty"`
	AgentMS   int64 `json:"agent_ms,omitempty"`
	VerifyMS  int64 `json:"verify_ms,omitempty"`
}

// TotalMS is how long a sandbox with these limits may live: their sum and 300 s.
func (l Limits) TotalMS() int64 {
	return l.ReadyMS + l.InstallMS + l.SetupMS + l.AgentMS + l.VerifyMS + 300_000
}

// Command is one command of the task, run by /bin/sh -c in the sandbox. It is
// the task author's own text, never assembled from parts.
type Command struct {
	Run  string            `json:"run"`
	User string            `json:"user,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
}

// Verify says how the reward is found. Its files are put into the sandbox only
// after the agent and all that it started has ended.
type Verify struct {
	// Run is the verifier's command. Empty means tests/test.sh of the bundle,
	// at /tests/test.sh.
	Run  string            `json:"run,omitempty"`
	User string            `json:"user,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	// RewardKey picks the headline reward of a reward.json with several
	// numbers. Default "reward", or the only one.
	RewardKey string `json:"reward_key,omitempty"`
}

// WithDefaults returns the request with every absent field set to what it
// means.
func (r Request) WithDefaults() Request {
	r.V = cmp.Or(r.V, Version)
	r.Shard = cmp.Or(r.Shard, "0")
	r.Mode = cmp.Or(r.Mode, ModeGate)
	r.Sandbox.Network = cmp.Or(r.Sandbox.Network, NetworkNone)
	r.Model.Name = cmp.Or(r.Model.Name, "policy")
	r.Gate.Stream = cmp.Or(r.Gate.Stream, StreamBuffer)
	r.Gate.MaxCalls = cmp.Or(r.Gate.MaxCalls, 1000)
	r.Gate.MaxParallel = cmp.Or(r.Gate.MaxParallel, 8)
	r.Gate.WaitMS = cmp.Or(r.Gate.WaitMS, 1_800_000)
	r.Limits.ReadyMS = cmp.Or(r.Limits.ReadyMS, 15_000)
	r.Limits.InstallMS = cmp.Or(r.Limits.InstallMS, 240_000)
	r.Limits.SetupMS = cmp.Or(r.Limits.SetupMS, 300_000)
	r.Limits.AgentMS = cmp.Or(r.Limits.AgentMS, 900_000)
	r.Limits.VerifyMS = cmp.Or(r.Limits.VerifyMS, 600_000)
	r.MaxAttempts = cmp.Or(r.MaxAttempts, 3)
	return r
}

// Validate reports the first field that is wrong.
func (r *Request) Validate() error {
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
	if r.Mode != "" {
		if err := checkOneOf("mode", string(r.Mode), string(ModeGate), string(ModeProxy), string(ModeBlack)); err != nil {
			return err
		}
	}
	if asksUpstream := r.Mode != "" && r.Mode != ModeGate; asksUpstream != (r.Model.Upstream != "") {
		return invalid("model.upstream", r.Model.Upstream, fmt.Sprintf("a name with mode %s or %s, and none with %s", ModeProxy, ModeBlack, ModeGate))
	}
	if r.Mode == ModeBlack && r.Sandbox.Network != NetworkOpen {
		return invalid("sandbox.network", r.Sandbox.Network, fmt.Sprintf("%s: with mode %s the agent calls its model itself", NetworkOpen, ModeBlack))
	}
	for _, check := range []func() error{
		r.Task.validate, r.Agent.validate, r.Sandbox.validate, r.Model.validate, r.Gate.validate, r.Limits.validate, r.validateRest,
	} {
		if err := check(); err != nil {
			return err
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
	if r.Verify != nil {
		c := Command{Run: cmp.Or(r.Verify.Run, "-"), User: r.Verify.User, Env: r.Verify.Env}
		if err := c.validate("verify"); err != nil {
			return err
		}
		if err := checkText("verify.reward_key", r.Verify.RewardKey, maxName); err != nil {
			return err
		}
	}
	if err := checkTextList("artifacts", r.Artifacts, 4096); err != nil {
		return err
	}
	for i, p := range r.Artifacts {
		if p == "" || !path.IsAbs(p) && !filepath.IsLocal(p) {
			return invalid(fmt.Sprintf("artifacts[%d]", i), p, "want a path in the working directory, or an absolute one in the sandbox")
		}
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
		if len(m.Command) == 0 || m.Command[0] == "" {
			return invalid(field+".command", "none", "want the argv of the server")
		}
		if err := checkTextList(field+".command", m.Command, maxCommand); err != nil {
			return err
		}
		if err := checkEnv(field+".env", m.Env); err != nil {
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
	if err := checkUser("agent.user", a.User); err != nil {
		return err
	}
	return checkRange("agent.max_turns", a.MaxTurns, 0, 1<<20)
}

func (s *SandboxChoice) validate() error {
	if err := CheckToken("sandbox.backend", s.Backend); err != nil {
		return err
	}
	if err := checkText("sandbox.image", s.Image, 512); err != nil {
		return err
	}
	if strings.HasPrefix(s.Image, "-") || strings.ContainsAny(s.Image, " \t\n") {
		return invalid("sandbox.image", s.Image, "want an image reference")
	}
	if s.Image != "" && s.Build {
		return invalid("sandbox.build", "true", "either build or image, not both")
	}
	if s.Network != "" {
		if err := checkOneOf("sandbox.network", s.Network, NetworkNone, NetworkAllowlist, NetworkOpen); err != nil {
			return err
		}
	}
	if err := checkTextList("sandbox.allow", s.Allow, maxName); err != nil {
		return err
	}
	if err := checkRange("sandbox.cpus", s.CPUs, 0, 1024); err != nil {
		return err
	}
	for _, n := range []struct {
		field   string
		v, high int64
	}{
		{"sandbox.memory_bytes", s.MemoryBytes, maxBytes}, {"sandbox.disk_bytes", s.DiskBytes, maxBytes},
		{"sandbox.pids", s.Pids, 1 << 22}, {"sandbox.gpus", int64(s.GPUs), 64},
	} {
		if err := checkRange(n.field, n.v, 0, n.high); err != nil {
			return err
		}
	}
	if err := checkUser("sandbox.user", s.User); err != nil {
		return err
	}
	if s.Workdir != "" {
		if err := CheckPath("sandbox.workdir", s.Workdir); err != nil {
			return err
		}
	}
	return checkEnv("sandbox.env", s.Env)
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
		{"gate.max_parallel", int64(g.MaxParallel), 64}, {"gate.wait_ms", g.WaitMS, maxDurationMS},
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
	if err := checkUser(field+".user", c.User); err != nil {
		return err
	}
	return checkEnv(field+".env", c.Env)
}
