package jobs

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/turngate/turngate/schema"
)

// The types below are Harbor's models of a job's files, as Harbor 0.24 validates
// them. Fields that have a default in Harbor and no value in turngate are left
// out.

type harborJobConfig struct {
	Name        string            `json:"job_name"`
	Dir         string            `json:"jobs_dir"`
	Attempts    int               `json:"n_attempts"`
	Concurrent  int               `json:"n_concurrent_trials"`
	Environment harborEnvironment `json:"environment"`
	Agents      []harborAgent     `json:"agents"`
	Tasks       []harborTask      `json:"tasks"`
}

// harborEnvironment names one of Harbor's backends, or turngate's backend by an
// import path.
type harborEnvironment struct {
	Type   string `json:"type,omitempty"`
	Import string `json:"import_path,omitempty"`
}

type harborAgent struct {
	Name  string `json:"name"`
	Model string `json:"model_name,omitempty"`
}

type harborTask struct {
	Path   string `json:"path"`
	Source string `json:"source,omitempty"`
}

type harborTrialConfig struct {
	Task        harborTask        `json:"task"`
	Name        string            `json:"trial_name"`
	Dir         string            `json:"trials_dir"`
	Agent       harborAgent       `json:"agent"`
	Environment harborEnvironment `json:"environment"`
	Job         string            `json:"job_id"`
}

type harborTrialLock struct {
	Schema      int               `json:"schema_version"`
	Task        harborTaskLock    `json:"task"`
	Agent       harborAgent       `json:"agent"`
	Environment harborEnvironment `json:"environment"`
	Verifier    struct {
		Mode string `json:"environment_mode,omitempty"`
	} `json:"verifier"`
}

type harborTaskLock struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Digest string `json:"digest"`
	Source string `json:"source,omitempty"`
	Path   string `json:"path"`
}

type harborJobLock struct {
	Schema     int       `json:"schema_version"`
	Created    time.Time `json:"created_at"`
	Harbor     struct{}  `json:"harbor"` // empty: Harbor did not write this file
	Concurrent int       `json:"n_concurrent_trials"`
	Retry      struct {
		Max int `json:"max_retries"`
	} `json:"retry"`
	Trials []harborTrialLock `json:"trials"`
}

type harborTrial struct {
	ID           string            `json:"id"`
	Task         string            `json:"task_name"`
	Name         string            `json:"trial_name"`
	URI          string            `json:"trial_uri"`
	TaskID       harborPath        `json:"task_id"`
	Source       string            `json:"source,omitempty"`
	Checksum     string            `json:"task_checksum"`
	Config       harborTrialConfig `json:"config"`
	Agent        harborAgentInfo   `json:"agent_info"`
	AgentResult  *harborContext    `json:"agent_result"`
	Verifier     *harborRewards    `json:"verifier_result"`
	VerifierMode string            `json:"verifier_environment_mode,omitempty"`
	Exception    *harborException  `json:"exception_info"`
	harborTiming
	Setup        *harborTiming `json:"environment_setup"`
	AgentSetup   *harborTiming `json:"agent_setup"`
	AgentRun     *harborTiming `json:"agent_execution"`
	Verification *harborTiming `json:"verifier"`
	Steps        []harborStep  `json:"step_results,omitempty"`
}

type harborPath struct {
	Path string `json:"path"`
}

type harborAgentInfo struct {
	Name    string       `json:"name"`
	Version string       `json:"version"`
	Model   *harborModel `json:"model_info"`
}

type harborModel struct {
	Name string `json:"name"`
}

type harborContext struct {
	Input    int64          `json:"n_input_tokens"`
	Cached   int64          `json:"n_cache_tokens"`
	Output   int64          `json:"n_output_tokens"`
	CostUSD  *float64       `json:"cost_usd,omitempty"`
	Metadata map[string]any `json:"metadata,omitempty"`
}

type harborRewards struct {
	Rewards map[string]float64 `json:"rewards"`
}

type harborException struct {
	Type      string    `json:"exception_type"`
	Message   string    `json:"exception_message"`
	Traceback string    `json:"exception_traceback"`
	At        time.Time `json:"occurred_at"`
}

type harborTiming struct {
	Started  *time.Time `json:"started_at"`
	Finished *time.Time `json:"finished_at"`
}

type harborStep struct {
	Name         string           `json:"step_name"`
	Verifier     *harborRewards   `json:"verifier_result"`
	Exception    *harborException `json:"exception_info"`
	AgentRun     *harborTiming    `json:"agent_execution"`
	Verification *harborTiming    `json:"verifier"`
}

type harborManifestEntry struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Type        string `json:"type"`   // file or directory
	Status      string `json:"status"` // ok, failed, empty or skipped
	Service     string `json:"service,omitempty"`
}

func (p *Plan) environment() harborEnvironment {
	if p.Backend == "docker" {
		return harborEnvironment{Type: "docker"}
	}
	return harborEnvironment{Import: "turngate.sandboxes:" + p.Backend}
}

func (v Variant) harbor() harborAgent { return harborAgent{v.Agent, v.Model} }

func (j *Job) config() harborJobConfig {
	p := &j.Plan
	c := harborJobConfig{
		Name: p.Name, Dir: filepath.Dir(j.Dir), Attempts: p.Attempts, Concurrent: p.Parallel,
		Environment: p.environment(), Agents: []harborAgent{}, Tasks: []harborTask{},
	}
	for _, v := range p.Variants {
		c.Agents = append(c.Agents, v.harbor())
	}
	seen := map[string]bool{}
	for _, t := range p.Trials {
		if !seen[t.Dir] {
			c.Tasks = append(c.Tasks, harborTask{t.Dir, t.Source})
		}
		seen[t.Dir] = true
	}
	return c
}

func (j *Job) trialConfig(t *Trial) harborTrialConfig {
	p := &j.Plan
	return harborTrialConfig{
		Task: harborTask{t.Dir, t.Source}, Name: t.Name, Dir: j.Dir, Agent: t.harbor(), Environment: p.environment(), Job: p.uuid(""),
	}
}

func (j *Job) trialLock(t *Trial, mode string) harborTrialLock {
	p := &j.Plan
	l := harborTrialLock{
		Schema: 2, Task: harborTaskLock{filepath.Base(t.Dir), "local", "sha256:" + t.Digest, t.Source, t.Dir}, Agent: t.harbor(), Environment: p.environment(),
	}
	l.Verifier.Mode = mode
	return l
}

func (j *Job) jobLock() harborJobLock {
	l := harborJobLock{Schema: 3, Created: j.Plan.Created, Concurrent: j.Plan.Parallel, Trials: []harborTrialLock{}}
	for i := range j.Plan.Trials {
		l.Trials = append(l.Trials, j.trialLock(&j.Plan.Trials[i], ""))
	}
	return l
}

// trial converts a result to Harbor's model.
func (j *Job) trial(t *Trial, r *schema.Result) harborTrial {
	p := &j.Plan
	out := harborTrial{
		ID: p.uuid(t.Name), Task: t.Task, Name: t.Name, URI: "file://" + filepath.Join(j.Dir, t.Name), TaskID: harborPath{t.Dir}, Source: t.Source, Checksum: t.Digest,
		Config: j.trialConfig(t), Agent: harborAgentInfo{Name: r.Agent, Version: r.AgentVersion},
		AgentResult: usage(r), Verifier: rewards(r.Reward, r.Rewards), VerifierMode: verifierMode(r), Exception: exception(r),
		harborTiming: span(r.Phases, func(string) bool { return true }),
		Setup:        ofPhases(r.Phases, "create", "upload"),
		AgentSetup:   ofPhases(r.Phases, "setup"),
		AgentRun:     ofPhases(r.Phases, "agent"),
		Verification: ofPhases(r.Phases, "verify"),
	}
	if out.Agent.Name == "" { // no worker ran the rollout
		out.Agent.Name = t.Agent
	}
	if out.Agent.Version == "" {
		out.Agent.Version = "unknown"
	}
	if t.Model != "" {
		out.Agent.Model = &harborModel{t.Model}
	}
	if out.Started == nil { // no phase ran
		now := time.Now().UTC().Truncate(time.Microsecond)
		out.Started, out.Finished = &now, &now
	}
	for _, s := range r.Steps {
		own := func(name string) *harborTiming {
			at := "step/" + s.Name + "/" + name
			if !slices.Contains(s.Phases, at) {
				return nil
			}
			return ofPhases(r.Phases, at)
		}
		h := harborStep{Name: s.Name, Verifier: rewards(s.Reward, s.Rewards), AgentRun: own("agent"), Verification: own("verify")}
		if s.Fault != nil {
			h.Exception = faultException(s.Fault, *out.Finished)
		}
		out.Steps = append(out.Steps, h)
	}
	return out
}

func verifierMode(r *schema.Result) string {
	switch {
	case len(r.Steps) > 0 || r.Separation == "":
		return ""
	case r.Separation == schema.SeparationSandbox:
		return "separate"
	default:
		return "shared"
	}
}

func usage(r *schema.Result) *harborContext {
	if len(r.Calls) == 0 {
		return nil
	}
	c := &harborContext{}
	calls := 0
	for _, s := range r.Calls {
		calls += s.Count
		c.Input += s.PromptTokens
		c.Cached += s.CachedTokens
		c.Output += s.CompletionTokens
	}
	c.CostUSD = r.CostUSD()
	c.Metadata = map[string]any{"calls": calls, "attempt": r.Attempt, "rollout": r.ID}
	return c
}

// rewards returns all numbers of a verifier, also if none of them is the headline.
func rewards(headline *float64, all map[string]float64) *harborRewards {
	switch {
	case len(all) > 0:
		return &harborRewards{all}
	case headline == nil:
		return nil
	default:
		return &harborRewards{map[string]float64{"reward": *headline}}
	}
}

func exception(r *schema.Result) *harborException {
	if r.Fault == nil {
		return nil
	}
	at := time.Now().UTC().Truncate(time.Microsecond)
	if s := span(r.Phases, func(string) bool { return true }); s.Finished != nil {
		at = *s.Finished
	}
	e := faultException(r.Fault, at)
	if r.Status == schema.StatusCancelled {
		e.Type = "CancelledError"
	}
	return e
}

func faultException(f *schema.Fault, at time.Time) *harborException {
	return &harborException{exceptionType(f), f.Message, f.Error() + "\nfault of: " + f.Who + "\n", at}
}

// exceptionType returns Harbor's name of a fault, or else the fault's code.
func exceptionType(f *schema.Fault) string {
	agent := f.Stage == "agent"
	switch {
	case f.Code == schema.CodeTimeout && agent:
		return "AgentTimeoutError"
	case f.Code == schema.CodeTimeout && f.Stage == "verify":
		return "VerifierTimeoutError"
	case f.Code == schema.CodeTimeout && f.Stage == "create":
		return "EnvironmentStartTimeoutError"
	case f.Code == schema.CodeNoReward:
		return "RewardFileNotFoundError"
	case f.Code == schema.CodeExit && agent:
		return "NonZeroAgentExitCodeError"
	case f.Code == schema.CodeCancelled:
		return "CancelledError"
	default:
		return f.Code
	}
}

// span returns the time from the start of the first chosen phase to the end of
// the last one.
func span(phases []schema.Phase, which func(string) bool) (t harborTiming) {
	for _, p := range phases {
		if !which(p.Name) {
			continue
		}
		from, to := time.UnixMilli(p.Start).UTC(), time.UnixMilli(p.Start+p.MS).UTC()
		if t.Started == nil || from.Before(*t.Started) {
			t.Started = &from
		}
		if t.Finished == nil || to.After(*t.Finished) {
			t.Finished = &to
		}
	}
	return t
}

// ofPhases returns the span of the named phases; nil if none of them ran.
func ofPhases(phases []schema.Phase, names ...string) *harborTiming {
	t := span(phases, func(name string) bool {
		return slices.Contains(names, cutIndex(name))
	})
	if t.Started == nil {
		return nil
	}
	return &t
}
