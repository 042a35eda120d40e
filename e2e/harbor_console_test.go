package e2e_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	rollouts "github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// The stored job of Harbor is valid by Harbor's own models, and its viewer shows it.
func TestTheStoredJobIsHarbors(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	seen := harborJob(t, filepath.Join(testenv.Root(t), "jobs/testdata/harbor/mixed"))
	if seen.Trials != 8 || len(seen.Rewards) != 5 || seen.Trajectories != 4 {
		t.Errorf("got %+v", seen)
	}
}

// turngate reads results and trajectories that Harbor's own models have written.
func TestModelsOfHarborAreRead(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	python, dir := testenv.HarborPython(t), filepath.Join(t.TempDir(), "job")
	if out, err := exec.Command(python, filepath.Join(testenv.Root(t), "e2e/testdata/harbor_models.py"), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list, err := rollouts.InJob(dir)
	harness.Must(t, err)
	by := map[string]*rollouts.Rollout{}
	for _, r := range list {
		by[r.Trial.Name] = r
		if r.Result == nil || r.Trial.Label() != "claude-code acme/m" {
			t.Fatalf("%s: got %+v", r.Trial.Name, r.Trial)
		}
	}
	steps := by["steps__1"].Result
	if *steps.Reward != 0.5 || len(steps.Steps) != 2 || *steps.Steps[0].Reward != 1 || steps.Steps[1].Fault.Code != schema.CodeTimeout || steps.Fault == nil || steps.Status != schema.StatusDone || steps.Calls["agent"].PromptTokens != 3 || *steps.CostUSD() != 1 || len(steps.Phases) != 4 {
		t.Errorf("got %+v", steps)
	}
	git := by["git__1"]
	if r := git.Result; r.Reward != nil || r.Rewards["speed"] != 0.25 || r.Separation != schema.SeparationSandbox || r.Fault != nil || git.Trial.Task != "x" || git.Trial.Dir != "https://example.org/repo/tasks/x" {
		t.Errorf("got %+v of %+v", r, git.Trial)
	}
	c, err := git.Read(t.Context(), trajectory.Options{})
	harness.Must(t, err)
	if len(c.Calls) != 3 || c.Calls[1].Role != schema.TagAgent || c.Calls[2].Role != schema.TagSubagent || c.Tokens.Sampled != 2 {
		t.Errorf("got %+v", c)
	}
	if p := by["package__1"]; p.Trial.Task != "org/name" || p.Result.Fault.Code != "SomeNewError" || p.Result.Fault.Stage != "setup" || p.Result.Status != schema.StatusDone && p.Result.Status != schema.StatusFailed {
		t.Errorf("got %+v", p.Result)
	}
}

// turngate's commands read a job that Harbor has run, and compare it with one of turngate.
func TestAJobThatHarborRan(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	python := testenv.HarborPython(t)
	testenv.Image(t)
	root, runs, tasks := testenv.Root(t), t.TempDir(), t.TempDir()
	hello := filepath.Join(tasks, "hello")
	harness.Must(t, os.CopyFS(hello, os.DirFS(filepath.Join(root, "examples/tasks/hello"))))
	config, err := os.ReadFile(filepath.Join(hello, "task.toml"))
	harness.Must(t, err)
	config = regexp.MustCompile(`(?s)\[task\].*?\n\n`).ReplaceAll(config, nil) // Harbor wants an organization in the name
	harness.Must(t, os.WriteFile(filepath.Join(hello, "task.toml"), config, 0o600))
	harness.Must(t, os.Mkdir(filepath.Join(hello, "environment"), 0o700))
	settings, err := json.Marshal(map[string]any{
		"job_name": "theirs", "jobs_dir": runs, "environment": map[string]any{"import_path": "harbor_run:Container"}, "tasks": []any{map[string]any{"path": hello}},
		"agents": []any{map[string]any{"import_path": "harbor_run:Scripted", "model_name": "acme/m"}},
	})
	harness.Must(t, err)
	file := filepath.Join(t.TempDir(), "job.json")
	harness.Must(t, os.WriteFile(file, settings, 0o600))
	cmd := exec.Command(filepath.Join(filepath.Dir(python), "harbor"), "run", "-c", file, "-y", "-q")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "e2e/testdata"), "PYTHONDONTWRITEBYTECODE=1", "HARBOR_TELEMETRY=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	binary, theirs, ours := testenv.Binary(t), filepath.Join(runs, "theirs"), filepath.Join(runs, "ours")
	command := func(args ...string) []byte {
		t.Helper()
		p := start(t, append([]string{binary}, args...)...)
		if code := p.wait(t, 5*time.Minute); code != 0 {
			t.Fatalf("%q: exit status %d: %s", args, code, p.err)
		}
		return []byte(p.out.String())
	}
	var report compare.Report
	harness.Must(t, json.Unmarshal(command("job", "report", "-o", "json", theirs), &report))
	if len(report.Variants) != 1 || report.Variants[0].Label() != "scripted acme/m" || report.Variants[0].Mean == nil || *report.Variants[0].Mean != 1 || report.Variants[0].PromptTokens != 18 {
		t.Errorf("got %+v", report)
	}
	command("run", "--agent", "nop", "--sandbox", "local", "--out", ours, hello)
	var changes []compare.Change
	harness.Must(t, json.Unmarshal(command("job", "diff", "-o", "json", ours, theirs), &changes))
	if len(changes) != 1 || changes[0].Task != "hello" || changes[0].Kind() != compare.Better {
		t.Errorf("got %+v", changes)
	}
	if out := command("job", "ls", runs); !bytes.Contains(out, []byte("theirs")) || !bytes.Contains(out, []byte("ours")) {
		t.Errorf("got %s", out)
	}
	if out := command("job", "show", theirs); !bytes.Contains(out, []byte("job theirs: ended")) {
		t.Errorf("got %s", out)
	}
	if out := command("job", "analyze", theirs); !bytes.Contains(out, []byte("1 rollout read")) {
		t.Errorf("got %s", out)
	}
	list, err := rollouts.InJob(theirs)
	harness.Must(t, err)
	if out := string(command("rollout", "show", "--runs", runs, string(list[0].ID))); !strings.Contains(out, "assistant calls bash") || !strings.Contains(out, "3 calls, 1 rows") {
		t.Errorf("got %s", out)
	}
}
