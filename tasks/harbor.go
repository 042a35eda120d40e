// Package tasks reads tasks from Harbor task directories (schema 1.0 to 1.4). A
// task becomes a request and a bundle, which hold all that a worker needs: a
// worker reads nothing of a task from its own disk.
package tasks

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/turngate/turngate/schema"
)

// Task is a task that can be submitted.
type Task struct {
	Dir     string
	Request schema.Request // without id, trainer and the submitter's choices, such as the agent
	Bundle  []byte         // tar.zst of the task's files
	// Solution holds the variables of the task's own solution. A request that
	// runs the solution has them in agent.env.
	Solution map[string]string
	Warnings []string // keys and files that were found and are not used
	Missing  []Missing

	abs      string            // absolute path of Dir
	env      map[string]string // given by the submitter
	problems []error           // errors that were found while the task was read
}

// Error reports a task directory that is not valid.
type Error struct {
	Dir    string
	Field  string // file, or key of task.toml
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("task %s: %s: %s", e.Dir, e.Field, e.Reason) }

// NeedError reports a need of a valid task that no sandbox meets.
type NeedError struct{ at *Error }

func (e *NeedError) Error() string { return e.at.Error() }

// Unwrap returns the *Error, which has the key.
func (e *NeedError) Unwrap() error { return e.at }

// config is the part of task.toml (schema 1.0 to 1.4) that turngate reads.
type config struct {
	SchemaVersion string         `toml:"schema_version"`
	Version       string         `toml:"version"`
	Task          map[string]any `toml:"task"`
	Metadata      map[string]any `toml:"metadata"`
	Source        string         `toml:"source"`
	Agent         agentConfig    `toml:"agent"`
	Verifier      verifierConfig `toml:"verifier"`

	Environment environmentConfig `toml:"environment"`
	Solution    struct {
		Env map[string]string `toml:"env"`
	} `toml:"solution"`
	Artifacts []any `toml:"artifacts"`

	Steps                   []stepConfig `toml:"steps"`
	MultiStepRewardStrategy string       `toml:"multi_step_reward_strategy"`

	Turngate struct {
		Setup      []string `toml:"setup"`
		Snapshot   bool     `toml:"snapshot"`
		RewardKey  string   `toml:"reward_key"`
		MaxCalls   int      `toml:"max_calls"`
		MaxRepeats int      `toml:"max_repeats"`
	} `toml:"turngate"`
}

// environmentConfig is the [environment] of the agent or of a separate verifier.
type environmentConfig struct {
	DockerImage     string            `toml:"docker_image"`
	BuildTimeoutSec *float64          `toml:"build_timeout_sec"`
	CPUs            float64           `toml:"cpus"`
	MemoryMB        float64           `toml:"memory_mb"`
	Memory          string            `toml:"memory"`
	StorageMB       float64           `toml:"storage_mb"`
	Storage         string            `toml:"storage"`
	GPUs            int               `toml:"gpus"`
	GPUTypes        []string          `toml:"gpu_types"`
	OS              string            `toml:"os"`
	TPU             *tpuConfig        `toml:"tpu"`
	Env             map[string]string `toml:"env"`
	Workdir         string            `toml:"workdir"`
	networkConfig
	AllowInternet *bool        `toml:"allow_internet"`
	Healthcheck   *healthcheck `toml:"healthcheck"`
	MCPServers    []mcpConfig  `toml:"mcp_servers"`
	SkillsDir     string       `toml:"skills_dir"`
}

// tpuConfig describes the TPU of an environment.
type tpuConfig struct {
	Type     string `toml:"type"`
	Topology string `toml:"topology"`
}

// Options control how a task is read.
type Options struct {
	// Env holds the variables that the submitter gives to the task: the values of
	// ${VAR} in task.toml and in compose files. A task reads no other variable of
	// the submitter, since its author may be another person.
	Env map[string]string
	// Verifier is "separate" to verify any task in a second sandbox, which gets
	// the artifacts that the task names. Empty: the task's own setting.
	Verifier string
}

// problem records an error once. It ignores nil.
func (t *Task) problem(err error) {
	if err != nil && !slices.ContainsFunc(t.problems, func(e error) bool { return e.Error() == err.Error() }) {
		t.problems = append(t.problems, err)
	}
}

// note adds a note to the results of the task, once.
func (t *Task) note(text string) {
	if notes := &t.Request.Task.Notes; len(*notes) < schema.MaxNotes && !slices.Contains(*notes, text) {
		*notes = append(*notes, text)
	}
}

// Load reads a task directory. Its error joins one *Error for each mistake in
// the task.
func Load(dir string, o Options) (*Task, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, &Error{dir, "path", err.Error()}
	}
	t := &Task{Dir: dir, abs: abs, env: o.Env}
	c, err := t.readConfig(abs)
	if err != nil { // nothing else can be checked
		t.problem(err)
		return nil, errors.Join(t.problems...)
	}
	t.Request.Task.Name = name(c, abs)
	if len(c.Steps) == 0 || exists(abs, "instruction.md") {
		t.Request.Task.Instruction = t.instruction("instruction.md")
	}
	t.fill(c)
	if c.Environment.DockerImage == "" && exists(abs, "environment/Dockerfile") {
		t.Request.Sandbox.Build = &schema.Build{}
	}
	if exists(abs, "environment/"+composeName) {
		t.compose("environment", &t.Request.Sandbox)
	}
	t.steps(c, o)
	if len(c.Steps) == 0 {
		t.Request.Verify = t.verify(c, nil, "", o, "tests")
	}
	if o.Verifier == verifierSeparate && noArtifacts(&t.Request) {
		t.problem(&Error{dir, "artifacts", "the task has none, so a separate verifier would have no files of the agent: list the paths that the tests read"})
	}
	if exists(abs, "solution") {
		t.Solution = t.expand("solution.env", c.Solution.Env)
	}
	t.noteMissing()
	t.Bundle, err = pack(abs, []string{"environment", "solution", "steps", "tests"})
	if err != nil {
		t.problem(&Error{dir, "files", err.Error()})
	}
	if len(t.problems) > 0 {
		return nil, errors.Join(t.problems...)
	}
	return t, nil
}

// IsTask reports whether a folder looks like a task.
func IsTask(dir string) bool {
	return exists(dir, "instruction.md") || exists(dir, "task.toml") && exists(dir, "steps")
}

func exists(dir, name string) bool { return folder{dir}.has(name) }

// ReplayScript returns the task's replay.yaml; nil if it has none.
func (t *Task) ReplayScript() ([]byte, error) {
	data, err := folder{t.abs}.read("replay.yaml", maxReplayFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &Error{t.Dir, "replay.yaml", err.Error()}
	}
	return data, nil
}

// noArtifacts reports whether neither the request nor a step has an artifact rule.
func noArtifacts(r *schema.Request) bool {
	for _, s := range r.Steps {
		if len(s.Artifacts) > 0 {
			return false
		}
	}
	return len(r.Artifacts) == 0
}

func name(c *config, dir string) string {
	if n, ok := c.Task["name"].(string); ok && n != "" {
		return n
	}
	return filepath.Base(dir)
}

// readConfig reads task.toml. Unknown keys become warnings.
func (t *Task) readConfig(dir string) (*config, error) {
	c := &config{}
	data, err := folder{dir}.read("task.toml", maxConfigFile)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, &Error{t.Dir, "task.toml", err.Error()}
	}
	d := toml.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	err = d.Decode(c)
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		for _, e := range unknown.Errors {
			t.Warnings = append(t.Warnings, "task.toml: "+strings.Join(e.Key(), ".")+" is an unknown key and has no effect")
		}
		c = &config{}
		err = toml.Unmarshal(data, c)
	}
	if err != nil {
		return nil, tomlError(t.Dir, err)
	}
	return c, nil
}

// buildMS is the time limit of a build if the task names none.
const buildMS = 600_000

func (t *Task) fill(c *config) {
	r, env := &t.Request, &c.Environment
	r.Sandbox = t.sandbox("environment", env)
	r.Agent.Network, r.Agent.Allow = t.network("agent", c.Agent.networkConfig)
	r.Agent.MCP, r.Agent.SkillsDir = t.mcp(env.MCPServers), env.SkillsDir
	r.Agent.User = t.user("agent.user", c.Agent.User)
	r.Limits.AgentMS = t.seconds("agent.timeout_sec", c.Agent.TimeoutSec)
	r.Limits.VerifyMS = t.seconds("verifier.timeout_sec", c.Verifier.TimeoutSec)
	r.Limits.InstallMS = cmp.Or(t.seconds("environment.build_timeout_sec", env.BuildTimeoutSec), buildMS)
	r.Healthcheck = t.health("environment.healthcheck", env.Healthcheck)
	for _, s := range c.Turngate.Setup {
		r.Setup = append(r.Setup, schema.Command{Run: s})
	}
	r.Snapshot = c.Turngate.Snapshot
	r.Gate.MaxCalls, r.Gate.MaxRepeats = c.Turngate.MaxCalls, c.Turngate.MaxRepeats
	r.Artifacts = t.artifacts("artifacts", c.Artifacts)
}

// sandbox reads an environment. The request has no need that the environment
// does not name, and no network unless the environment names one; a note says so,
// since Harbor's default differs.
func (t *Task) sandbox(at string, env *environmentConfig) schema.SandboxChoice {
	s := schema.SandboxChoice{Image: env.DockerImage, CPUs: env.CPUs, GPUs: env.GPUs, Workdir: env.Workdir}
	s.MemoryBytes = t.size(at+".memory", env.MemoryMB, env.Memory)
	s.DiskBytes = t.size(at+".storage", env.StorageMB, env.Storage)
	s.Env = t.expand(at+".env", env.Env)
	t.unmet(at, env)
	network := env.networkConfig
	if network.NetworkMode == "" && env.AllowInternet != nil && *env.AllowInternet {
		network.NetworkMode = "public"
	}
	s.Network, s.Allow = t.network(at, network)
	if network.NetworkMode == "" && env.AllowInternet == nil {
		t.note("task.toml: " + at + networkNote)
	}
	s.Network = cmp.Or(s.Network, schema.NetworkNone)
	return s
}

// unmet refuses needs that no sandbox meets.
func (t *Task) unmet(at string, env *environmentConfig) {
	const reason = "%q is a need that no sandbox meets: want %s"
	switch env.OS {
	case "", "linux":
	case "windows":
		t.problem(&NeedError{&Error{t.Dir, at + ".os", fmt.Sprintf(reason, env.OS, "linux")}})
	default:
		t.problem(&Error{t.Dir, at + ".os", fmt.Sprintf("%q is not valid: want linux or windows", env.OS)})
	}
	if env.TPU != nil {
		t.problem(&NeedError{&Error{t.Dir, at + ".tpu", fmt.Sprintf(reason, strings.TrimSpace(env.TPU.Type+" "+env.TPU.Topology), "no tpu")}})
	}
}

// size returns a size in bytes. It reads megabytes, or the older form such as
// "4G".
func (t *Task) size(field string, mb float64, text string) int64 {
	if mb < 0 || math.IsNaN(mb) || mb > 1<<30 {
		t.problem(&Error{t.Dir, field + "_mb", fmt.Sprintf("%v is not valid: want megabytes of 0 or more", mb)})
		return 0
	}
	if mb > 0 || text == "" {
		return int64(mb * (1 << 20))
	}
	n, err := ParseSize(text)
	if err != nil {
		t.problem(&Error{t.Dir, field, err.Error()})
	}
	return n
}

// user reads a user's name or uid.
func (t *Task) user(field string, v any) string {
	switch v.(type) {
	case nil:
		return ""
	case string, int64:
	default:
		t.bad(field, v, "a user name or uid")
		return ""
	}
	s := fmt.Sprint(v)
	if err := schema.CheckUser(field, s); err != nil {
		t.bad(field, strconv.Quote(s), "a user name or uid, optionally :group")
		return ""
	}
	return s
}
