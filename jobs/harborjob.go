package jobs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/internal/stranger"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// harborTrainer is the trainer's name in the ids of rollouts that Harbor ran.
const harborTrainer = "harbor"

// Bounds of a job that Harbor wrote.
const (
	maxHarborTrials  = 100_000
	maxHarborSetting = 16 << 20 // bytes of a config.json, a lock.json, and of the job's result.json
	maxHarborResult  = 64 << 20 // bytes of a trial's result.json
	maxHarborOutput  = 16 << 10 // bytes of a verifier's output: its end
	maxHarborCode    = 64       // bytes of the code of a fault
)

// harborSettings returns the settings of a job that Harbor ran; nil: the folder is none.
// The folder of a trial has a config.json, too.
func harborSettings(job *stranger.Folder) rawjson.Loose {
	data, err := job.Read("config.json", maxHarborSetting)
	if err != nil {
		return nil
	}
	c := rawjson.LooseOf(data)
	if c == nil || c.Has("trial_name") || !c.Has("job_name") && !c.Has("jobs_dir") {
		return nil
	}
	return c
}

// isHarbor reports whether a folder is that of a job that Harbor ran.
func isHarbor(dir string) bool {
	job, err := stranger.Open(dir)
	if err != nil {
		return false
	}
	defer job.Close()
	return harborSettings(job) != nil
}

// tailIn reads the end of a text; empty: there is none.
func tailIn(trial *stranger.Folder, name string, limit int64) string {
	f, err := trial.Open(name, math.MaxInt64)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > limit {
		_, _ = f.Seek(-limit, io.SeekEnd) // else its beginning
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(data), "\uFFFD")
}

// harborRun is a trial as its folder has it. It has few fields of the files: a result may
// have the tokens of all model calls.
type harborRun struct {
	name     string
	settings rawjson.Loose  // of config.json, or of the result: agent and task
	lock     rawjson.Loose  // task
	result   rawjson.Loose  // the fields that name the trial; nil: it has no result, or it cannot be read
	ended    *schema.Result // without the fields that name the trial; nil: it has not ended
}

// readHarbor reads a job that Harbor ran, which may be running. Trials that have no folder
// yet are not in the plan. ok is false for any other folder.
func readHarbor(dir string, job *stranger.Folder) (p Plan, done map[string]schema.Result, ok bool, err error) {
	c := harborSettings(job)
	if c == nil {
		return p, nil, false, nil
	}
	runs, err := harborRuns(job)
	if err != nil {
		return p, nil, true, fmt.Errorf("open the job %s: %w", dir, err)
	}
	abs, err := filepath.Abs(dir) // the folder "." has a name, too
	if err != nil {
		return p, nil, true, fmt.Errorf("open the job: %w", err)
	}
	p = Plan{
		V: schema.Version, Name: cmp.Or(c.Text("job_name"), filepath.Base(abs)), Flags: map[string][]string{}, Args: []string{}, Harbor: true,
		Attempts: int(max(c.Count("n_attempts"), 1)), Parallel: int(max(c.Count("n_concurrent_trials"), 1)), Trials: []Trial{},
	}
	p.Backend = cmp.Or(c.Object("environment").Text("type"), c.Object("environment").Text("import_path"), "docker")
	data, _ := job.Read("result.json", maxHarborSetting) // a job that has just begun has none
	p.Created = rawjson.LooseOf(data).Time("started_at")
	agents, indexes := harborAgents(runs), map[string]int{}
	done = map[string]schema.Result{}
	for _, r := range runs {
		t := r.trial(agents)
		t.Rollout = harborID(filepath.Base(abs), t.Name)
		t.Group = shortHash(filepath.Base(abs), t.Dir, t.Agent, t.Model)
		t.Index = indexes[t.Group]
		indexes[t.Group]++
		if !slices.Contains(p.Variants, t.Variant) {
			p.Variants = append(p.Variants, t.Variant)
		}
		p.Trials = append(p.Trials, t)
		if begun := r.result.Time("started_at"); p.Created.IsZero() || !begun.IsZero() && begun.Before(p.Created) {
			p.Created = begun
		}
		if r.ended != nil {
			done[t.Name] = t.own(*r.ended)
		}
	}
	slices.SortFunc(p.Variants, func(a, b Variant) int { return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Model, b.Model)) })
	return p, done, true, nil
}

// harborRuns reads the folders of the trials, in the order of their beginnings.
func harborRuns(job *stranger.Folder) ([]*harborRun, error) {
	names, err := job.Names(maxHarborTrials + 1)
	if err != nil {
		return nil, err
	}
	if len(names) > maxHarborTrials {
		return nil, fmt.Errorf("it has more than %d entries", maxHarborTrials)
	}
	slices.Sort(names)
	var out []*harborRun
	for _, name := range names {
		if r := harborRunIn(job, name); r != nil {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b *harborRun) int {
		x, y := a.result.Time("started_at"), b.result.Time("started_at")
		if x.IsZero() != y.IsZero() { // trials that have not ended come last
			return map[bool]int{true: 1, false: -1}[x.IsZero()]
		}
		return x.Compare(y)
	})
	return out, nil
}

// harborRunIn reads the folder of a trial; nil: it is none.
func harborRunIn(job *stranger.Folder, name string) *harborRun {
	if !job.IsFolder(name) {
		return nil
	}
	trial, err := job.Folder(name)
	if err != nil {
		return nil
	}
	defer trial.Close()
	r := &harborRun{name: name}
	settings, serr := trial.Read("config.json", maxHarborSetting)
	data, rerr := trial.Read("result.json", maxHarborResult)
	if errors.Is(serr, fs.ErrNotExist) && errors.Is(rerr, fs.ErrNotExist) {
		return nil
	}
	lock, _ := trial.Read("lock.json", maxHarborSetting) // an older version writes none
	r.lock = rawjson.LooseOf(lock).Only("task")
	var result rawjson.Loose
	if rerr == nil {
		if result, rerr = rawjson.ReadLoose(data); rerr == nil && result == nil {
			rerr = errors.New("it is not an object")
		}
	}
	switch {
	case errors.Is(rerr, fs.ErrNotExist):
	case rerr != nil:
		r.ended = unread("result.json", rerr)
		result = nil
	default:
		r.ended = harborResult(trial, result)
	}
	r.settings = rawjson.LooseOf(settings)
	if r.settings == nil {
		r.settings = result.Object("config")
	}
	r.settings = r.settings.Only("agent", "task")
	r.result = result.Only("agent_info", "source", "started_at", "task_checksum", "task_name")
	return r
}

// maxHarborSteps is the largest number of steps of a trial that are read.
const maxHarborSteps = 100

// harborSteps returns the results of the steps with names that a folder can have.
func harborSteps(result rawjson.Loose) (out []rawjson.Loose) {
	for _, raw := range result.List("step_results") {
		step := rawjson.LooseOf(raw)
		if schema.CheckStepName("step_name", step.Text("step_name")) == nil && len(out) < maxHarborSteps {
			out = append(out, step)
		}
	}
	return out
}

// namedAgent names an agent as the settings of a trial do: by a name or a class.
func namedAgent(settings rawjson.Loose) string {
	agent := settings.Object("agent")
	return cmp.Or(agent.Text("name"), agent.Text("import_path"))
}

// harborAgents returns the names that agents have themselves, by those in the settings.
func harborAgents(runs []*harborRun) map[string]string {
	out := map[string]string{}
	for _, r := range runs {
		if own := r.result.Object("agent_info").Text("name"); own != "" {
			out[namedAgent(r.settings)] = own
		}
	}
	return out
}

// harborID returns the id of a trial's rollout.
func harborID(job, trial string) schema.ID {
	return schema.ID(harborTrainer + "-" + shortHash(job, trial))
}

func shortHash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:13])
}

// trial describes the trial. Its task is named by its own folder, if it has one.
func (r *harborRun) trial(agents map[string]string) Trial {
	task, named := r.settings.Object("task"), namedAgent(r.settings)
	dir := path.Clean(cmp.Or(task.Text("path"), task.Text("name"), r.result.Text("task_name"), r.name))
	if url := task.Text("git_url"); url != "" {
		dir = strings.TrimSuffix(url, "/") + "/" + dir
	}
	t := Trial{
		Name: r.name, Variant: Variant{Agent: cmp.Or(agents[named], named, "unknown"), Model: r.settings.Object("agent").Text("model_name")},
		Task: cmp.Or(r.result.Text("task_name"), r.lock.Object("task").Text("name"), path.Base(dir)), Dir: dir,
		Source: cmp.Or(r.result.Text("source"), task.Text("source")), Digest: cmp.Or(r.lock.Object("task").Text("digest"), r.result.Text("task_checksum")),
	}
	t.Digest = strings.TrimPrefix(t.Digest, "sha256:")
	return t
}

// own returns a result of the trial with the fields that name it.
func (t *Trial) own(r schema.Result) schema.Result {
	r.V, r.ID, r.Trainer, r.Group, r.Index, r.Task, r.Attempt, r.Agent = schema.Version, t.Rollout, t.Rollout.Trainer(), t.Group, t.Index, t.Task, 1, t.Agent
	return r
}

// harborResult converts the result in the folder of a trial.
func harborResult(trial *stranger.Folder, h rawjson.Loose) *schema.Result {
	output := func(of string) string {
		return tailIn(trial, path.Join(of, "verifier/test-stdout.txt"), maxHarborOutput)
	}
	out := &schema.Result{Status: schema.StatusDone}
	out.AgentVersion = h.Object("agent_info").Text("version")
	out.Reward, out.Rewards = harborRewardsOf(h)
	out.Phases = harborPhases(h, "", output(""))
	usage := []rawjson.Loose{h.Object("agent_result")}
	for _, s := range harborSteps(h) {
		name := s.Text("step_name")
		own := schema.StepResult{Name: name}
		own.Reward, own.Rewards = harborRewardsOf(s)
		phases := harborPhases(s, "step/"+name+"/", output(path.Join("steps", name)))
		for _, p := range phases {
			own.Phases = append(own.Phases, p.Name)
		}
		own.Fault = harborFault(s, phases)
		out.Phases = append(out.Phases, phases...)
		out.Steps = append(out.Steps, own)
		if !h.Has("agent_result") {
			usage = append(usage, s.Object("agent_result"))
		}
	}
	if used := harborUsage(usage); used != nil {
		out.Calls = schema.SortedMap[schema.CallStats]{schema.TagAgent: *used}
	}
	if h.Text("verifier_environment_mode") == "separate" {
		out.Separation = schema.SeparationSandbox
	}
	out.Fault = harborFault(h, out.Phases)
	for _, s := range out.Steps {
		if out.Fault == nil {
			out.Fault = s.Fault
		}
	}
	switch f := out.Fault; {
	case f == nil:
	case f.Code == schema.CodeCancelled:
		out.Status = schema.StatusCancelled
	case f.Who != schema.WhoAgent && out.Reward == nil:
		out.Status = schema.StatusFailed
	}
	for _, field := range []string{"agent_result", "verifier_result", "exception_info"} {
		if h.Has(field) && h.Object(field) == nil {
			out.Notes = append(out.Notes, "result.json has the field "+field+" in a form that is not known here")
		}
	}
	return out
}

// harborRewardsOf returns the numbers of a verifier, and the one that is the reward.
func harborRewardsOf(h rawjson.Loose) (*float64, schema.SortedMap[float64]) {
	of := h.Object("verifier_result").Object("rewards")
	all := map[string]float64{}
	for name := range of {
		if n := of.Number(name); n != nil {
			all[name] = *n
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	headline, _ := tasks.Headline(all, "") // fails for a key that is given
	if len(all) == 1 {
		return headline, nil
	}
	return headline, all
}

// harborPhases returns the phases of a trial or a step, with the verifier's output.
func harborPhases(h rawjson.Loose, prefix, output string) (out []schema.Phase) {
	for _, one := range []struct{ field, phase string }{{"environment_setup", "create"}, {"agent_setup", "setup[0]"}, {"agent_execution", "agent"}, {"verifier", "verify"}} {
		at := h.Object(one.field)
		from, to := at.Time("started_at"), at.Time("finished_at")
		if from.IsZero() {
			continue
		}
		p := schema.Phase{Name: prefix + one.phase, Start: from.UnixMilli()}
		if to.After(from) {
			p.MS = to.Sub(from).Milliseconds()
		}
		if one.phase == "verify" {
			p.Output = output
		}
		out = append(out, p)
	}
	return out
}

func harborUsage(list []rawjson.Loose) *schema.CallStats {
	var out *schema.CallStats
	for _, u := range list {
		if u == nil {
			continue
		}
		if out == nil {
			out = &schema.CallStats{}
		}
		out.PromptTokens += u.Count("n_input_tokens")
		out.CompletionTokens += u.Count("n_output_tokens")
		out.CachedTokens += u.Count("n_cache_tokens")
		out.Count += int(u.Object("metadata").Count("n_episodes")) // of the agent Terminus 2: its calls
		if cost := u.Number("cost_usd"); cost != nil {
			sum := *cost
			if out.CostUSD != nil {
				sum += *out.CostUSD
			}
			out.CostUSD = &sum
		}
	}
	return out
}

// faultOfHarbor returns the fault of an exception's type, without its message; see
// exceptionType. ok is false for a type that turngate has no code for.
func faultOfHarbor(kind string) (f schema.Fault, ok bool) {
	switch kind {
	case "AgentTimeoutError":
		return schema.Fault{Stage: "agent", Code: schema.CodeTimeout, Who: schema.WhoAgent}, true
	case "NonZeroAgentExitCodeError":
		return schema.Fault{Stage: "agent", Code: schema.CodeExit, Who: schema.WhoAgent}, true
	case "AgentSetupTimeoutError":
		return schema.Fault{Stage: "setup", Code: schema.CodeTimeout, Who: schema.WhoAgent}, true
	case "VerifierTimeoutError":
		return schema.Fault{Stage: "verify", Code: schema.CodeTimeout, Who: schema.WhoTask}, true
	case "RewardFileNotFoundError", "RewardFileEmptyError":
		return schema.Fault{Stage: "verify", Code: schema.CodeNoReward, Who: schema.WhoTask}, true
	case "EnvironmentStartTimeoutError":
		return schema.Fault{Stage: "create", Code: schema.CodeTimeout, Who: schema.WhoSandbox}, true
	case "CancelledError":
		return schema.Fault{Code: schema.CodeCancelled, Who: schema.WhoUser}, true
	default:
		return schema.Fault{Code: schema.Clip(kind, maxHarborCode), Stage: "create", Who: schema.WhoSandbox}, false
	}
}

// harborFault converts an exception; nil: there is none. The code of one that turngate has
// no code for is its type.
func harborFault(h rawjson.Loose, phases []schema.Phase) *schema.Fault {
	if !h.Has("exception_info") {
		return nil
	}
	x := h.Object("exception_info")
	kind := cmp.Or(x.Text("exception_type"), "exception")
	f, known := faultOfHarbor(kind)
	if !known {
		at := x.Time("occurred_at").UnixMilli()
		for _, p := range phases { // the last one that had begun
			if x.Time("occurred_at").IsZero() || p.Start <= at {
				f.Stage = path.Base(cutIndex(p.Name))
			}
		}
		switch f.Stage {
		case "setup", "agent":
			f.Who = schema.WhoAgent
		case "verify":
			f.Who = schema.WhoTask
		}
	}
	text := x.Text("exception_message")
	if text == "" {
		text = kind
	}
	f.Message = schema.Clip(text, maxReason)
	return &f
}

// harborEnd returns the time at which a job of Harbor ended; zero: it has not.
func harborEnd(dir string) time.Time {
	job, err := stranger.Open(dir)
	if err != nil {
		return time.Time{}
	}
	defer job.Close()
	data, _ := job.Read("result.json", maxHarborSetting) // without it the job has not ended
	return rawjson.LooseOf(data).Time("finished_at")
}
