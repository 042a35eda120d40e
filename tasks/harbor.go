// Package tasks reads task formats: Harbor task directories (schema 1.0 to 1.4)
// so far. A task becomes a request and a bundle; nothing of it is read from the
// worker's disk.
package tasks

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/turngate/turngate/schema"
)

// Task is one task, ready to be submitted.
type Task struct {
	Dir      string
	Request  schema.Request // without id, trainer and the choices of who submits
	Bundle   []byte         // tar.zst of the task's files
	Build    bool           // it has environment/Dockerfile
	Replay   string         // path of its replay.yaml; empty: none
	Warnings []string       // what was found and is not used
}

// Error says what is wrong with a task directory.
type Error struct {
	Dir    string
	Field  string // file, or key of task.toml
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("task %s: %s: %s", e.Dir, e.Field, e.Reason) }

// config is task.toml, schema 1.0 to 1.4, as far as it concerns the agent, the
// verifier and the environment.
type config struct {
	SchemaVersion string         `toml:"schema_version"`
	Version       string         `toml:"version"`
	Task          map[string]any `toml:"task"`
	Metadata      map[string]any `toml:"metadata"`
	Source        string         `toml:"source"`
	Agent         struct {
		TimeoutSec  *float64 `toml:"timeout_sec"`
		User        any      `toml:"user"`
		NetworkMode string   `toml:"network_mode"`
	} `toml:"agent"`
	Verifier struct {
		TimeoutSec      *float64          `toml:"timeout_sec"`
		Env             map[string]string `toml:"env"`
		User            any               `toml:"user"`
		EnvironmentMode string            `toml:"environment_mode"`
		Collect         []any             `toml:"collect"`
	} `toml:"verifier"`
	Environment struct {
		DockerImage     string            `toml:"docker_image"`
		BuildTimeoutSec *float64          `toml:"build_timeout_sec"`
		CPUs            float64           `toml:"cpus"`
		MemoryMB        float64           `toml:"memory_mb"`
		Memory          string            `toml:"memory"`
		StorageMB       float64           `toml:"storage_mb"`
		Storage         string            `toml:"storage"`
		GPUs            int               `toml:"gpus"`
		GPUTypes        []string          `toml:"gpu_types"`
		Env             map[string]string `toml:"env"`
		Workdir         string            `toml:"workdir"`
		NetworkMode     string            `toml:"network_mode"`
		AllowedHosts    []string          `toml:"allowed_hosts"`
		AllowInternet   *bool             `toml:"allow_internet"`
		Healthcheck     *healthcheck      `toml:"healthcheck"`
		MCPServers      []any             `toml:"mcp_servers"`
		SkillsDir       string            `toml:"skills_dir"`
	} `toml:"environment"`
	Solution struct {
		Env map[string]string `toml:"env"`
	} `toml:"solution"`
	Artifacts []string `toml:"artifacts"`
	Steps     []any    `toml:"steps"`
	Turngate  struct {
		Setup     []string `toml:"setup"`
		RewardKey string   `toml:"reward_key"`
		MaxCalls  int      `toml:"max_calls"`
	} `toml:"turngate"`
}

type healthcheck struct {
	Command          string  `toml:"command"`
	IntervalSec      float64 `toml:"interval_sec"`
	TimeoutSec       float64 `toml:"timeout_sec"`
	StartPeriodSec   float64 `toml:"start_period_sec"`
	StartIntervalSec float64 `toml:"start_interval_sec"`
	Retries          int     `toml:"retries"`
}

// Options say how a task is read.
type Options struct {
	// Lookup gives the value of ${VAR} in the task's env tables; it is asked
	// where the task is submitted, never on a worker.
	Lookup func(name string) (string, bool)
}

// Load reads a task directory. What is wrong with it is an *Error.
func Load(dir string, o Options) (*Task, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, &Error{dir, "path", err.Error()}
	}
	t := &Task{Dir: dir}
	instruction, err := os.ReadFile(filepath.Join(abs, "instruction.md"))
	if err != nil {
		return nil, &Error{dir, "instruction.md", reason(err)}
	}
	if strings.TrimSpace(string(instruction)) == "" {
		return nil, &Error{dir, "instruction.md", "it is empty"}
	}
	c, err := t.readConfig(abs)
	if err != nil {
		return nil, err
	}
	t.Request.Task = schema.Task{Name: name(c, abs), Instruction: string(instruction)}
	if err := t.fill(c, o); err != nil {
		return nil, err
	}
	t.Build = exists(abs, "environment/Dockerfile") && c.Environment.DockerImage == ""
	if exists(abs, "environment/docker-compose.yaml") {
		return nil, &Error{dir, "environment/docker-compose.yaml", "tasks of several containers are not supported"}
	}
	if exists(abs, "tests/test.sh") {
		v := &schema.Verify{User: user(c.Verifier.User), RewardKey: c.Turngate.RewardKey}
		if v.Env, err = t.expand("verifier.env", c.Verifier.Env, o); err != nil {
			return nil, err
		}
		t.Request.Verify = v
	}
	if exists(abs, "replay.yaml") {
		t.Replay = filepath.Join(abs, "replay.yaml")
	}
	t.Bundle, err = pack(abs, []string{"environment", "solution", "tests"})
	if err != nil {
		return nil, &Error{dir, "files", err.Error()}
	}
	return t, nil
}

func reason(err error) string {
	if errors.Is(err, os.ErrNotExist) {
		return "it is missing"
	}
	return err.Error()
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

func name(c *config, dir string) string {
	if n, ok := c.Task["name"].(string); ok && n != "" {
		return n
	}
	return filepath.Base(dir)
}

// readConfig reads task.toml; keys that are not known are reported, not fatal.
func (t *Task) readConfig(dir string) (*config, error) {
	c := &config{}
	data, err := os.ReadFile(filepath.Join(dir, "task.toml"))
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
			t.Warnings = append(t.Warnings, "task.toml: "+strings.Join(e.Key(), ".")+" is not known and not used")
		}
		c = &config{}
		err = toml.Unmarshal(data, c)
	}
	if err != nil {
		return nil, &Error{t.Dir, "task.toml", err.Error()}
	}
	return c, nil
}

func (t *Task) fill(c *config, o Options) (err error) {
	for field, bad := range map[string]bool{
		"steps": len(c.Steps) > 0, "verifier.collect": len(c.Verifier.Collect) > 0, "environment.mcp_servers": len(c.Environment.MCPServers) > 0,
		"verifier.environment_mode": c.Verifier.EnvironmentMode != "" && c.Verifier.EnvironmentMode != "shared",
	} {
		if bad {
			return &Error{t.Dir, field, "this is not supported yet; without it the task would mean something else"}
		}
	}
	if c.Environment.SkillsDir != "" {
		t.Warnings = append(t.Warnings, "task.toml: environment.skills_dir is not used")
	}
	r, env := &t.Request, c.Environment
	r.Sandbox = schema.SandboxChoice{Image: env.DockerImage, CPUs: env.CPUs, GPUs: env.GPUs, Workdir: env.Workdir}
	if r.Sandbox.MemoryBytes, err = t.size("environment.memory", env.MemoryMB, env.Memory); err != nil {
		return err
	}
	if r.Sandbox.DiskBytes, err = t.size("environment.storage", env.StorageMB, env.Storage); err != nil {
		return err
	}
	if r.Sandbox.Env, err = t.expand("environment.env", env.Env, o); err != nil {
		return err
	}
	if r.Sandbox.Network, err = t.network(c); err != nil {
		return err
	}
	r.Sandbox.Allow = env.AllowedHosts
	r.Agent.User = user(c.Agent.User)
	for _, limit := range []struct {
		field string
		from  *float64
		to    *int64
	}{
		{"agent.timeout_sec", c.Agent.TimeoutSec, &r.Limits.AgentMS}, {"verifier.timeout_sec", c.Verifier.TimeoutSec, &r.Limits.VerifyMS},
		{"environment.build_timeout_sec", env.BuildTimeoutSec, &r.Limits.InstallMS},
	} {
		if limit.from == nil {
			continue
		}
		if *limit.from <= 0 || math.IsNaN(*limit.from) || *limit.from > 30*24*3600 {
			return &Error{t.Dir, limit.field, fmt.Sprintf("%v is not valid: want seconds above 0, at most 30 days", *limit.from)}
		}
		*limit.to = int64(*limit.from * 1000)
	}
	if h := env.Healthcheck; h != nil && h.Command != "" {
		r.Setup = append(r.Setup, h.setup())
	}
	for _, s := range c.Turngate.Setup {
		r.Setup = append(r.Setup, schema.Command{Run: s})
	}
	r.Gate.MaxCalls = c.Turngate.MaxCalls
	r.Artifacts = c.Artifacts
	return nil
}

// setup waits for the task's own health check. The check travels as a
// variable, so nothing of it is put together with other shell text.
func (h *healthcheck) setup() schema.Command {
	retries, interval := h.Retries, h.IntervalSec
	if retries <= 0 {
		retries = 3
	}
	if interval <= 0 {
		interval = 5
	}
	return schema.Command{
		Run: `i=0; until /bin/sh -c "$TURNGATE_HEALTHCHECK"; do i=$((i+1)); [ "$i" -ge "$TURNGATE_RETRIES" ] && exit 1; sleep "$TURNGATE_INTERVAL"; done`,
		Env: map[string]string{
			"TURNGATE_HEALTHCHECK": h.Command, "TURNGATE_RETRIES": strconv.Itoa(retries),
			"TURNGATE_INTERVAL": strconv.FormatFloat(interval, 'f', -1, 64),
		},
	}
}

// network maps the task's wish; no wish is no network.
func (t *Task) network(c *config) (string, error) {
	mode := c.Agent.NetworkMode
	if mode == "" {
		mode = c.Environment.NetworkMode
	}
	if mode == "" && c.Environment.AllowInternet != nil && *c.Environment.AllowInternet {
		mode = "public"
	}
	switch mode {
	case "", "no-network":
		return schema.NetworkNone, nil
	case "public":
		return schema.NetworkOpen, nil
	case "allowlist":
		return schema.NetworkAllowlist, nil
	default:
		return "", &Error{t.Dir, "network_mode", fmt.Sprintf("%q is not valid: want public, no-network or allowlist", mode)}
	}
}

// size reads megabytes, or the older form such as "4G", as bytes.
func (t *Task) size(field string, mb float64, text string) (int64, error) {
	if mb < 0 || math.IsNaN(mb) || mb > 1<<30 {
		return 0, &Error{t.Dir, field + "_mb", fmt.Sprintf("%v is not valid: want megabytes of 0 or more", mb)}
	}
	if mb > 0 || text == "" {
		return int64(mb * (1 << 20)), nil
	}
	digits := strings.TrimRight(strings.ToUpper(text), "GMKIB")
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text)[len(digits):], "B"), "I")
	n, err := strconv.ParseFloat(digits, 64)
	factor, ok := map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit]
	if err != nil || !ok || n < 0 || n*factor > 1<<50 {
		return 0, &Error{t.Dir, field, fmt.Sprintf("%q is not valid: want a size such as 4G", text)}
	}
	return int64(n * factor), nil
}

func user(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// expand fills in ${VAR} and ${VAR:-default}.
func (t *Task) expand(field string, env map[string]string, o Options) (map[string]string, error) {
	if len(env) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(env))
	for k, v := range env {
		if !strings.HasPrefix(v, "${") || !strings.HasSuffix(v, "}") {
			out[k] = v
			continue
		}
		name, fallback, hasFallback := strings.Cut(v[2:len(v)-1], ":-")
		value, ok := "", false
		if o.Lookup != nil {
			value, ok = o.Lookup(name)
		}
		if !ok && !hasFallback {
			return nil, &Error{t.Dir, field + "." + k, fmt.Sprintf("the variable %s is not set here", name)}
		}
		if !ok {
			value = fallback
		}
		out[k] = value
	}
	return out, nil
}
