package schema

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// Step is one part of a task with several instructions. The steps of a request
// run in order in one sandbox; each starts a new session of the agent. The files
// of a step are in the bundle below steps/<name>: workdir is copied into the
// working directory, workdir/setup.sh is run there, tests and solution belong
// to this step alone.
type Step struct {
	Name        string            `json:"name"`
	Instruction string            `json:"instruction"`
	User        string            `json:"user,omitempty"`    // of the agent; default agent.user
	Env         map[string]string `json:"env,omitempty"`     // of the agent, on top of agent.env
	Network     string            `json:"network,omitempty"` // of the agent; default agent.network
	Allow       []string          `json:"allow,omitempty"`
	AgentMS     int64             `json:"agent_ms,omitempty"`
	VerifyMS    int64             `json:"verify_ms,omitempty"`
	// Healthcheck must succeed after the step's setup, before the agent starts.
	Healthcheck *Healthcheck `json:"healthcheck,omitempty"`
	// Verify describes the verifier of this step. Nil: it is not verified.
	Verify *Verify `json:"verify,omitempty"`
	// Artifacts are kept after this step, in addition to the request's artifacts.
	Artifacts []ArtifactRule `json:"artifacts,omitempty"`
	// MinReward ends the rollout after this step if one of these rewards is lower
	// or missing.
	MinReward SortedMap[float64] `json:"min_reward,omitempty"`
}

// Values of Request.StepReward. They derive the rewards of a rollout from the
// rewards of its steps.
const (
	// StepRewardMean is the mean of each reward over the verified steps. A reward
	// that is missing in one of them counts as 0 there.
	StepRewardMean = "mean"
	// StepRewardFinal takes the rewards of the last step that ran.
	StepRewardFinal = "final"
)

// Verify describes a verifier, which finds the reward. Its files are copied into
// the sandbox only after the agent has ended.
type Verify struct {
	// By is "trainer" if the trainer finds the reward: it gets a Verification, and
	// acts in the sandbox until it answers. Such a verifier has no run. The
	// bundle's tests are in /tests, if it has any.
	By string `json:"by,omitempty"`
	// Run is the verifier's command. Empty means tests/test.sh of the bundle, at
	// /tests/test.sh. In a step it means the step's tests/test.sh, or else the
	// task's; /tests has the files of both.
	Run  string            `json:"run,omitempty"`
	User string            `json:"user,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	// Network and Allow are the verifier's network; default the network of its
	// sandbox.
	Network string   `json:"network,omitempty"`
	Allow   []string `json:"allow,omitempty"`
	// RewardKey names the number in reward.json that becomes the reward. Default
	// "reward", or the only number.
	RewardKey string `json:"reward_key,omitempty"`
	// Separate runs the verifier in a second sandbox, which gets only the
	// artifacts of the first sandbox, at their source paths. Backend and image
	// default to the first sandbox's. Nil: the verifier runs in the
	// agent's sandbox.
	Separate *SandboxChoice `json:"separate,omitempty"`
	// Bundled means that the image of the separate sandbox contains /tests.
	Bundled bool `json:"bundled,omitempty"`
	// Processes is "keep", the default, if processes that the agent left running go
	// on while the verifier runs in the agent's sandbox. "end" ends them. Processes that use
	// the verifier's files end in any case, and all of them if the verifier's network
	// reaches more than the agent's.
	Processes string `json:"processes,omitempty"`
	// Collect are commands that run after the agent and before artifacts are
	// read. A failure only adds a note to the result.
	Collect []Hook `json:"collect,omitempty"`
}

// Values of Verify.Processes.
const (
	ProcessesKeep = "keep"
	ProcessesEnd  = "end"
)

// VerifyByTrainer is the value of Verify.By for a trainer that verifies.
const VerifyByTrainer = "trainer"

// withDefaults fills the backend and image of a separate sandbox from the
// agent's sandbox if they are absent.
func (v *Verify) withDefaults(agent SandboxChoice) *Verify {
	if v == nil || v.Separate == nil {
		return v
	}
	out, sandbox := *v, *v.Separate
	sandbox.Backend = cmp.Or(sandbox.Backend, agent.Backend)
	sandbox.Network = cmp.Or(sandbox.Network, NetworkNone)
	if sandbox.Image == "" && sandbox.Build == nil {
		sandbox.Image, sandbox.Build = agent.Image, agent.Build
	}
	sandbox.Build = sandbox.Build.WithDefaults()
	out.Separate = &sandbox
	return &out
}

// Hook is a command that saves the state of a service to files.
type Hook struct {
	Run       string `json:"run"`               // for /bin/sh -c
	Service   string `json:"service,omitempty"` // default "main", the agent's container
	User      string `json:"user,omitempty"`    // default: the service's
	TimeoutMS int64  `json:"timeout_ms,omitempty"`
}

// HookTimeoutMS is the time limit of a hook without a limit of its own, in
// milliseconds.
const HookTimeoutMS = 60_000

// MainService is the name of the agent's container.
const MainService = "main"

// ArtifactRule names a file or folder of a sandbox to keep.
type ArtifactRule struct {
	// Source is an absolute path, or relative to the working directory.
	Source string `json:"source"`
	// Destination is a relative path that names the artifact. Default: the
	// source without its leading slash.
	Destination string `json:"destination,omitempty"`
	// Service is the container that has the path. Default "main".
	Service string `json:"service,omitempty"`
	// Exclude are patterns of files to leave out of a folder, with the meaning of
	// tar's --exclude.
	Exclude []string `json:"exclude,omitempty"`
}

// Healthcheck must succeed before an agent starts. The command is repeated until
// it succeeds once, or has failed Retries times in a row.
type Healthcheck struct {
	Run             string `json:"run"`                         // for /bin/sh -c
	IntervalMS      int64  `json:"interval_ms,omitempty"`       // between checks; default 5 000
	TimeoutMS       int64  `json:"timeout_ms,omitempty"`        // of one check; default 30 000
	StartPeriodMS   int64  `json:"start_period_ms,omitempty"`   // in which failures do not count; default 0
	StartIntervalMS int64  `json:"start_interval_ms,omitempty"` // between checks in the start period; default 5 000
	Retries         int    `json:"retries,omitempty"`           // default 3
}

// WithDefaults returns the health check with every absent field set to its
// default.
func (h Healthcheck) WithDefaults() Healthcheck {
	h.IntervalMS = cmp.Or(h.IntervalMS, 5_000)
	h.TimeoutMS = cmp.Or(h.TimeoutMS, 30_000)
	h.StartIntervalMS = cmp.Or(h.StartIntervalMS, 5_000)
	h.Retries = cmp.Or(h.Retries, 3)
	return h
}

// longestMS returns the longest duration of the check, in milliseconds.
func (h *Healthcheck) longestMS() int64 {
	if h == nil {
		return 0
	}
	d := h.WithDefaults()
	return d.StartPeriodMS + d.StartIntervalMS + d.TimeoutMS + int64(d.Retries)*(d.IntervalMS+d.TimeoutMS)
}

// besideMS returns the longest duration of the hooks and of the start of a
// separate sandbox, in milliseconds.
func (v *Verify) besideMS(l Limits) (all int64) {
	if v == nil {
		return 0
	}
	for _, h := range v.Collect {
		all += cmp.Or(h.TimeoutMS, HookTimeoutMS)
	}
	if v.Separate != nil {
		all += l.InstallMS + l.ReadyMS + l.SetupMS
	}
	return all
}

// Values of Result.Separation, from the weakest to the strongest.
const (
	SeparationSameUser  = "same-user"
	SeparationOtherUser = "other-user"
	SeparationSandbox   = "separate" // in a second sandbox
)

// StepResult is the outcome of one step.
type StepResult struct {
	Name       string             `json:"name"`
	Reward     *float64           `json:"reward"` // null: not known
	Rewards    SortedMap[float64] `json:"rewards,omitempty"`
	Fault      *Fault             `json:"fault,omitempty"`
	Exit       *Exit              `json:"exit,omitempty"` // of the agent
	Separation string             `json:"separation,omitempty"`
	Phases     []string           `json:"phases,omitempty"` // names of its phases in the result
	// FirstCall and LastCall are the numbers of the first and last model call of
	// the agent in this step. 0: it made no call.
	FirstCall int `json:"first_call,omitempty"`
	LastCall  int `json:"last_call,omitempty"`
}

func (r *Request) validateSteps() error {
	if err := checkCount("steps", len(r.Steps), maxSteps); err != nil {
		return err
	}
	if r.StepReward != "" {
		if err := checkOneOf("step_reward", r.StepReward, StepRewardMean, StepRewardFinal); err != nil {
			return err
		}
		if len(r.Steps) == 0 {
			return invalid("step_reward", r.StepReward, "none without steps")
		}
	}
	if len(r.Steps) > 0 && r.Verify != nil {
		return invalid("verify", "set", "none beside steps: each step has its own")
	}
	seen := map[string]bool{}
	for i := range r.Steps {
		s, field := &r.Steps[i], fmt.Sprintf("steps[%d]", i)
		if err := s.validate(field); err != nil {
			return err
		}
		if key := strings.ToLower(s.Name); seen[key] {
			return invalid(field+".name", s.Name, "a name of its own, in lower case too")
		} else {
			seen[key] = true
		}
	}
	return nil
}

func (s *Step) validate(field string) error {
	if err := CheckStepName(field+".name", s.Name); err != nil {
		return err
	}
	if err := checkText(field+".instruction", s.Instruction, maxInstruction); err != nil {
		return err
	}
	if err := CheckUser(field+".user", s.User); err != nil {
		return err
	}
	if err := checkEnv(field+".env", s.Env); err != nil {
		return err
	}
	if err := checkNetwork(field, s.Network, s.Allow); err != nil {
		return err
	}
	if err := checkRange(field+".agent_ms", s.AgentMS, 0, maxDurationMS); err != nil {
		return err
	}
	if err := checkRange(field+".verify_ms", s.VerifyMS, 0, maxDurationMS); err != nil {
		return err
	}
	if err := checkEnvLike(field+".min_reward", keysOf(s.MinReward), maxLabels); err != nil {
		return err
	}
	if err := s.Healthcheck.validate(field + ".healthcheck"); err != nil {
		return err
	}
	if err := s.Verify.validate(field + ".verify"); err != nil {
		return err
	}
	return validateArtifacts(field+".artifacts", s.Artifacts)
}

func keysOf(m map[string]float64) map[string]string {
	out := make(map[string]string, len(m))
	for k := range m {
		out[k] = ""
	}
	return out
}

// CheckStepName checks that a name is valid as the name of one folder on any
// operating system.
func CheckStepName(field, s string) error {
	want := `want the name of a folder, at most 255 bytes, without / \ : * ? " < > |, and no dot or space at its end`
	bad := func(c rune) bool { return unicode.IsControl(c) || strings.ContainsRune(`<>:"/\|?*`, c) }
	if strings.TrimSpace(s) == "" || len(s) > 255 || strings.HasSuffix(s, ".") || strings.HasSuffix(s, " ") || strings.ContainsFunc(s, bad) {
		return invalid(field, s, want)
	}
	return checkText(field, s, 255)
}

func (h *Healthcheck) validate(field string) error {
	if h == nil {
		return nil
	}
	c := Command{Run: h.Run}
	if err := c.validate(field); err != nil {
		return err
	}
	for _, n := range []struct {
		field string
		v     int64
	}{
		{"interval_ms", h.IntervalMS}, {"timeout_ms", h.TimeoutMS}, {"start_period_ms", h.StartPeriodMS}, {"start_interval_ms", h.StartIntervalMS},
	} {
		if err := checkRange(field+"."+n.field, n.v, 0, maxDurationMS); err != nil {
			return err
		}
	}
	return checkRange(field+".retries", h.Retries, 0, 1000)
}

func (v *Verify) validate(field string) error {
	if v == nil {
		return nil
	}
	c := Command{Run: cmp.Or(v.Run, "-"), User: v.User, Env: v.Env}
	if err := c.validate(field); err != nil {
		return err
	}
	if v.By != "" {
		if err := checkOneOf(field+".by", v.By, VerifyByTrainer); err != nil {
			return err
		}
		if v.Run != "" {
			return invalid(field+".run", v.Run, "nothing, since the trainer verifies")
		}
	}
	if err := checkText(field+".reward_key", v.RewardKey, maxName); err != nil {
		return err
	}
	if err := checkNetwork(field, v.Network, v.Allow); err != nil {
		return err
	}
	if v.Separate != nil {
		if err := v.Separate.validate(field + ".separate"); err != nil {
			return err
		}
	}
	if v.Processes != "" {
		if err := checkOneOf(field+".processes", v.Processes, ProcessesKeep, ProcessesEnd); err != nil {
			return err
		}
		if v.Separate != nil && v.Processes == ProcessesKeep {
			return invalid(field+".processes", v.Processes, `"end" or nothing, since the verifier has a sandbox of its own`)
		}
	}
	if v.Bundled && v.Separate == nil {
		return invalid(field+".bundled", "true", "only with "+field+".separate")
	}
	if err := checkCount(field+".collect", len(v.Collect), maxList); err != nil {
		return err
	}
	for i, h := range v.Collect {
		at := fmt.Sprintf("%s.collect[%d]", field, i)
		c := Command{Run: h.Run, User: h.User}
		if err := c.validate(at); err != nil {
			return err
		}
		if h.Service != "" {
			if err := checkService(at+".service", h.Service); err != nil {
				return err
			}
		}
		if err := checkRange(at+".timeout_ms", h.TimeoutMS, 0, maxDurationMS); err != nil {
			return err
		}
	}
	return nil
}

// checkService checks the name of a service.
func checkService(field, s string) error {
	ok := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_.-", c)
	}
	if s == "" || len(s) > 63 || strings.ContainsRune("_.-", rune(s[0])) || strings.ContainsFunc(s, func(c rune) bool { return !ok(c) }) {
		return invalid(field, s, "want the name of a service: letters, digits, _, . and -, beginning with a letter or digit")
	}
	return nil
}

func validateArtifacts(field string, rules []ArtifactRule) error {
	if err := checkCount(field, len(rules), maxList); err != nil {
		return err
	}
	for i, a := range rules {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkText(at+".source", a.Source, 4096); err != nil {
			return err
		}
		if a.Source == "" || slices.Contains(strings.Split(a.Source, "/"), "..") {
			return invalid(at+".source", a.Source, `want a path in the working directory, or an absolute one in the sandbox, without ".."`)
		}
		if a.Service != "" {
			if err := checkService(at+".service", a.Service); err != nil {
				return err
			}
			if a.Service != MainService && !path.IsAbs(a.Source) {
				return invalid(at+".source", a.Source, "want an absolute path: it is in another service")
			}
		}
		if err := checkText(at+".destination", a.Destination, 1024); err != nil {
			return err
		}
		if d := a.Destination; d != "" && (!filepath.IsLocal(d) || strings.Contains(d, `\`) || path.Clean(d) == "." || path.Clean(d) == ArtifactManifest) {
			return invalid(at+".destination", d, `want a relative path without "..", and not `+ArtifactManifest)
		}
		if err := checkTextList(at+".exclude", a.Exclude, 4096); err != nil {
			return err
		}
	}
	return nil
}

// ArtifactWorkdir is the destination of the artifact rule with the source "." that keeps
// the agent's working directory for a verifier that runs again. It has symbolic links, too.
// A working directory that is the root folder is not kept.
const ArtifactWorkdir = "agent-workdir"

// KeepsWorkdir reports whether the rule is the one of ArtifactWorkdir.
func (a *ArtifactRule) KeepsWorkdir() bool {
	return a.Source == "." && a.Destination == ArtifactWorkdir
}

// ArtifactManifest is the name of the artifact that lists the outcome of every
// artifact rule.
const ArtifactManifest = "manifest.json"
