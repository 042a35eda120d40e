package jobs_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// harborMixed is a copy of a job that Harbor 0.24 ran: two tasks with two agents, twice.
func harborMixed(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mixed")
	harness.Must(t, os.CopyFS(dir, os.DirFS("testdata/harbor/mixed")))
	return dir
}

func put(t *testing.T, data string, path ...string) {
	t.Helper()
	harness.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(path...)), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(path...), []byte(data), 0o600))
}

func TestAJobOfHarborIsRead(t *testing.T) {
	dir := harborMixed(t)
	p, results, err := jobs.Read(dir)
	harness.Must(t, err)
	if !p.Harbor || p.Name != "mixed" || p.Attempts != 2 || p.Parallel != 2 || len(p.Trials) != 8 || len(results) != 8 || p.Created.IsZero() {
		t.Errorf("got %+v", p)
	}
	report := compare.NewReport(&p, results)
	if len(report.Variants) != 2 || len(report.Tasks) != 2 {
		t.Fatalf("got %+v", report)
	}
	oracle, scripted := report.Variants[0], report.Variants[1]
	if oracle.Agent != "oracle" || oracle.Ended != 4 || oracle.Rewarded != 2 || *oracle.Mean != 1 || oracle.Faults() != 2 || oracle.Errors[0].Code != "FileNotFoundError" || oracle.Errors[0].Stage != "agent" {
		t.Errorf("got %+v", oracle)
	}
	if scripted.Label() != "scripted acme/m-1" || scripted.Rewarded != 3 || scripted.Interval == nil || scripted.PassAt[1] != 1 || scripted.PromptTokens != 72 || scripted.CompletionTokens != 20 || scripted.CachedTokens != 4 || math.Abs(*scripted.CostUSD-0.012) > 1e-9 || scripted.Seconds < 4 {
		t.Errorf("got %+v", scripted)
	}
	if f := scripted.Errors[0]; f.Code != schema.CodeTimeout || f.Stage != "verify" || f.Who != schema.WhoTask || !strings.Contains(f.Example, "60.0 seconds") {
		t.Errorf("got %+v", f)
	}
	ids := map[schema.ID]bool{}
	for _, r := range results {
		if err := schema.Validate(&r); err != nil || ids[r.ID] {
			t.Errorf("%s: %v", r.ID, err)
		}
		ids[r.ID] = true
		if r.Fault == nil && len(r.Phases) != 4 {
			t.Errorf("got the phases %+v", r.Phases)
		}
	}
	list, err := jobs.List(filepath.Dir(dir))
	harness.Must(t, err)
	if len(list) != 1 || list[0].Finished == nil || list[0].Ended != 8 || strings.Join(list[0].Agents, " ") != "oracle scripted" {
		t.Errorf("got %+v", list)
	}
	if state, err := jobs.StateOf(t.Context(), dir); err != nil || state != jobs.StateEnded {
		t.Errorf("got %s, %v", state, err)
	}
	if _, err := jobs.Open(dir); !errors.Is(err, jobs.ErrHarbor) {
		t.Errorf("got %v", err)
	}
	if _, err := jobs.Control(t.Context(), dir, jobs.ActionPause); !errors.Is(err, jobs.ErrHarbor) {
		t.Errorf("got %v", err)
	}
	if err := jobs.Is(filepath.Join(dir, p.Trials[0].Name)); !errors.Is(err, jobs.ErrNoJob) {
		t.Errorf("the folder of a trial: got %v", err)
	}
}

// A job of Harbor is compared with one of turngate by the names of the tasks.
func TestAJobOfHarborIsCompared(t *testing.T) {
	dir := harborMixed(t)
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Attempts: 1, Flags: map[string][]string{}, Args: []string{}}
	harness.Must(t, p.AddTask("local", jobs.Task{Dir: "/tasks/hello", Name: "hello"}))
	j, err := jobs.Create(filepath.Join(t.TempDir(), "own"), p)
	harness.Must(t, err)
	defer j.Close()
	reward := 0.0
	harness.Must(t, j.Put(t.Context(), schema.Result{V: schema.Version, ID: p.Trials[0].Rollout, Trainer: "local", Status: schema.StatusDone, Reward: &reward, Task: "hello"}, nil))
	// One agent in each job, so that their names do not count.
	for _, d := range []string{"hello__Jr8pLBb", "hello__jA7r222", "wrong__TXVP8L4", "wrong__gDJmRD7"} {
		harness.Must(t, os.RemoveAll(filepath.Join(dir, d)))
	}
	changes, err := compare.Diff(j.Dir, dir)
	harness.Must(t, err)
	if len(changes) != 2 || changes[0].Task != "hello" || changes[0].Kind() != compare.Better || *changes[0].B.Reward != 1 || changes[1].Kind() != compare.OnlyB {
		t.Errorf("got %+v", changes)
	}
}

// The group of a task is of one job, and two spellings of a folder are one folder.
func TestTheTasksOfTwoJobsOfHarbor(t *testing.T) {
	runs := t.TempDir()
	groups := map[string]bool{}
	for _, job := range []string{"a", "b"} {
		put(t, `{"job_name":"x"}`, runs, job, "config.json")
		for trial, dir := range map[string]string{"t__1": "tasks/t", "t__2": "tasks//t/", "t__3": "other/t"} {
			put(t, `{"trial_name":"t","agent":{"name":"oracle"},"task":{"path":"`+dir+`"}}`, runs, job, trial, "config.json")
		}
		p, _, err := jobs.Read(filepath.Join(runs, job))
		harness.Must(t, err)
		for _, trial := range p.Trials {
			groups[trial.Group] = true
		}
	}
	if len(groups) != 4 {
		t.Errorf("got the groups %v", groups)
	}
	changes, err := compare.Diff(filepath.Join(runs, "a"), filepath.Join(runs, "b"))
	harness.Must(t, err)
	if len(changes) != 2 || changes[0].Task != "t (other/t)" || changes[1].Task != "t (tasks/t)" || changes[1].A.Trials != 2 || changes[1].B.Trials != 2 {
		t.Errorf("got %+v", changes)
	}
}

// A file that cannot be read is the fault of its trial alone. Fields of a newer version
// change nothing.
func TestBrokenFilesOfHarbor(t *testing.T) {
	dir := harborMixed(t)
	_, before, err := jobs.Read(dir)
	harness.Must(t, err)
	const whole = `{"task_name":"t","trial_name":"x","started_at":"2026-01-01T00:00:00","new":{"a":[1]},"agent_info":{"name":"scripted","new":1},"agent_result":{"n_input_tokens":5,"cost_usd":null},
		"verifier_result":{"rewards":{"style":1,"speed":0.5,"bad":"x"}},"exception_info":null,"step_results":[{"step_name":"one","verifier_result":{"rewards":{"reward":1}},"verifier":{"started_at":"2026-01-01T00:00:01","finished_at":"2026-01-01T00:00:03"}},{"step_name":"../two"},7]}`
	put(t, whole, dir, "newer__a", "result.json")
	put(t, "the tests\xff", dir, "newer__a", "steps/one/verifier/test-stdout.txt")
	put(t, `{"exception_info":"odd","verifier_result":[1],"task_name":7,"step_results":{}}`, dir, "odd__a", "result.json")
	put(t, `{`, dir, "cut__a", "result.json")
	put(t, `null`, dir, "null__a", "result.json")
	put(t, `{"task":{"git_url":"https://x.org/r/","path":"t/u"},"trial_name":"git__a","agent":{"import_path":"harbor_run:Scripted","model_name":"acme/m-1"}}`, dir, "git__a", "config.json")
	put(t, `{"exception_info":{"exception_type":"CancelledError"},"verifier_result":null}`, dir, "gone__a", "result.json")
	put(t, "secret", filepath.Dir(dir), "outside", "result.json")
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "link__a"), 0o755))
	harness.Must(t, os.Symlink("../../outside/result.json", filepath.Join(dir, "link__a", "result.json")))
	harness.Must(t, os.Symlink("../outside", filepath.Join(dir, "linked__a")))
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "folder__a", "result.json"), 0o755))

	p, results, err := jobs.Read(dir)
	harness.Must(t, err)
	by := map[string]schema.Result{}
	for i, r := range results {
		if r.ID == before[i%len(before)].ID && i < len(before) && r.Fault == nil && *r.Reward != 1 {
			t.Errorf("the result of %s changed: %+v", r.ID, r)
		}
		by[p.Names()[r.ID]] = r
	}
	newer := by["newer__a"]
	if newer.Fault != nil || newer.Reward != nil || newer.Rewards["style"] != 1 || newer.Rewards["speed"] != 0.5 || len(newer.Rewards) != 2 || len(newer.Steps) != 1 || *newer.Steps[0].Reward != 1 ||
		len(newer.Phases) != 1 || newer.Phases[0].Name != "step/one/verify" || newer.Phases[0].MS != 2000 || newer.Phases[0].Output != "the tests\uFFFD" || newer.Calls["agent"].PromptTokens != 5 || newer.CostUSD() != nil {
		t.Errorf("got %+v", newer)
	}
	for _, name := range []string{"cut__a", "null__a", "link__a", "folder__a"} {
		if f := by[name].Fault; f == nil || f.Code != schema.CodeUnreadable || by[name].Status != schema.StatusFailed || strings.Contains(f.Message, "secret") {
			t.Errorf("%s: got %+v", name, by[name])
		}
	}
	if odd := by["odd__a"]; odd.Fault == nil || len(odd.Notes) != 2 || odd.Status != schema.StatusFailed {
		t.Errorf("got %+v", odd)
	}
	if gone := by["gone__a"]; gone.Status != schema.StatusCancelled || gone.Fault.Message != "CancelledError" {
		t.Errorf("got %+v", gone)
	}
	open := 0
	for _, trial := range p.Trials {
		if trial.Name == "linked__a" {
			t.Error("a folder outside of the job is a trial")
		}
		if _, ended := by[trial.Name]; !ended {
			open++
			if trial.Name != "git__a" || trial.Dir != "https://x.org/r/t/u" || trial.Task != "u" || trial.Label() != "scripted acme/m-1" {
				t.Errorf("got %+v", trial)
			}
		}
	}
	if len(p.Trials) != 16 || open != 1 {
		t.Errorf("%d trials, %d open", len(p.Trials), open)
	}
	put(t, strings.Repeat("x", 100), dir, "result.json") // of the job: its trials count
	if _, again, err := jobs.Read(dir); err != nil || len(again) != len(results) {
		t.Errorf("got %d results, %v", len(again), err)
	}
	if state, err := jobs.StateOf(t.Context(), dir); err != nil || state != jobs.StateOpen {
		t.Errorf("got %s, %v", state, err)
	}
}

// FuzzHarborJob: no files of a job of Harbor make its reading fail, and each trial has at
// most one valid result.
func FuzzHarborJob(f *testing.F) {
	seed, err := os.ReadFile("testdata/harbor/mixed/hello__5eLtK5T/result.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"job_name":"x"}`), []byte(`{"trial_name":"a__b"}`), seed)
	f.Add([]byte(`{"jobs_dir":1,"n_attempts":-1e30}`), []byte(`{"task":{"path":"/"},"agent":{"name":""}}`), []byte(`{"exception_info":{"exception_type":"\u0000"},"step_results":[{"step_name":".."}],"agent_result":{"n_input_tokens":-5,"cost_usd":1e308}}`))
	f.Fuzz(func(t *testing.T, job, config, result []byte) {
		dir := filepath.Join(t.TempDir(), "job")
		put(t, string(job), dir, "config.json")
		put(t, string(config), dir, "a__b", "config.json")
		put(t, string(result), dir, "a__b", "result.json")
		p, results, err := jobs.Read(dir)
		if errors.Is(err, jobs.ErrNoJob) {
			return
		}
		harness.Must(t, err)
		if len(p.Trials) != 1 || len(results) != 1 {
			t.Fatalf("got %d trials with %d results", len(p.Trials), len(results))
		}
		if err := schema.Validate(&results[0]); err != nil {
			t.Error(err)
		}
		compare.NewReport(&p, results)
	})
}
