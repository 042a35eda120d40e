package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

const privileged = "services:\n  main:\n    privileged: true\n"

// mixedTasks makes a folder with one task that runs in the local sandbox and
// three that cannot run there.
func mixedTasks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good/instruction.md": "Do it.", "good/tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
		"mounts/instruction.md": "Do it.", "mounts/environment/docker-compose.yaml": privileged, "mounts/tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
		"broken/instruction.md": "Do it.", "broken/task.toml": "[",
		"image/instruction.md": "Do it.", "image/environment/Dockerfile": "FROM x\n",
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	return dir
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// byTask returns the results of a run by their tasks.
func byTask(t *testing.T, o outcome, n int) map[string]schema.Result {
	t.Helper()
	out := map[string]schema.Result{}
	list := results(t, o)
	for _, r := range list {
		out[r.Task] = r
	}
	if len(list) != n {
		t.Fatalf("%d results, want %d: %+v", len(list), n, o)
	}
	return out
}

// TestATaskThatDoesNotLoadIsATrial: the other tasks run, the fault has the
// reason, and a resumed job keeps the trial or, with --rerun, loads it again.
func TestATaskThatDoesNotLoadIsATrial(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	dir, at := mixedTasks(t), filepath.Join(t.TempDir(), "job")
	reasons := map[string]string{"mounts": "privileged", "broken": "task.toml", "image": "environment/Dockerfile"}
	check := func(got outcome) {
		t.Helper()
		all := byTask(t, got, 8)
		if r := all["good"]; got.code != 1 || r.Fault != nil || r.Reward == nil || *r.Reward != 1 {
			t.Errorf("good: %+v", got)
		}
		for name, reason := range reasons {
			r := all[name]
			if r.Status != schema.StatusFailed || r.Reward != nil || r.Fault == nil || r.Fault.Stage != "load" || !strings.Contains(r.Fault.Message, reason) {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if !strings.Contains(got.errOut, "8 of 8 ended") || !strings.Contains(got.errOut, "4       load   invalid  task") || !strings.Contains(got.errOut, "2       load   invalid  user") {
			t.Errorf("the summary: %s", got.errOut)
		}
	}
	args := []string{"run", "--agent", "nop", "--sandbox", "local", "-n", "2", "-o", "json"}
	check(turngate(t, binary, append(args, "--out", at, dir)...))
	check(turngate(t, binary, "run", "--resume", at, "-o", "json"))

	p, _, err := jobs.Read(at)
	if err != nil {
		t.Fatal(err)
	}
	for _, trial := range p.Trials { // as if the process was killed before it wrote this result
		if trial.Task == "mounts" && trial.Index == 1 {
			if err := os.RemoveAll(filepath.Join(at, trial.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(turngate(t, binary, "run", "--resume", at, "-o", "json"))

	if err := os.RemoveAll(filepath.Join(dir, "mounts/environment")); err != nil {
		t.Fatal(err)
	}
	delete(reasons, "mounts")
	again := turngate(t, binary, "run", "--resume", at, "--rerun", "invalid", "-o", "json")
	all := byTask(t, again, 8)
	if r := all["mounts"]; again.code != 1 || r.Fault != nil || r.Reward == nil || *r.Reward != 1 || all["broken"].Fault == nil || all["image"].Fault == nil {
		t.Errorf("after the task was mended: %+v", again)
	}
	if kept := turngate(t, binary, "run", "--resume", at, "-o", "json"); kept.code != 1 || byTask(t, kept, 8)["mounts"].Reward == nil {
		t.Errorf("%+v", kept)
	}
}

// TestNoTaskLoads: a job without any trial that can run is not begun.
func TestNoTaskLoads(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	dir, at := mixedTasks(t), filepath.Join(t.TempDir(), "job")
	for _, args := range [][]string{{filepath.Join(dir, "mounts")}, {"--filter", "mounts", dir}, {"--exclude", "good", dir}} {
		got := turngate(t, binary, append([]string{"run", "--agent", "nop", "--sandbox", "local", "--out", at}, args...)...)
		if got.code != 2 || got.out != "" || !strings.Contains(got.errOut, "privileged") {
			t.Errorf("%+v", got)
		}
		if _, err := os.Stat(at); err == nil {
			t.Error("a job was begun")
		}
	}
}
