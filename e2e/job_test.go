package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// harborSeen is the content of a job that Harbor's own models found. The keys of
// its maps are tasks.
type harborSeen struct {
	Trials, Trajectories, Cancelled int
	Cost                            float64
	Rewards                         []struct {
		Task    string
		Numbers map[string]float64
	}
	Errors map[string]string               // types of exceptions
	Modes  map[string]string               // of the verifier
	Steps  map[string][]map[string]float64 // rewards; nil: the step has none
}

// harborJob reads a job with Harbor's own models and viewer.
func harborJob(t *testing.T, job string) (seen harborSeen) {
	t.Helper()
	python := testenv.HarborPython(t)
	out, err := exec.Command(python, filepath.Join(testenv.Root(t), "e2e/testdata/harbor_job.py"), job).Output()
	if err != nil {
		var said []byte
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output wraps nothing
			said = exit.Stderr
		}
		t.Fatalf("Harbor does not read the job: %v\n%s", err, said)
	}
	if err := json.Unmarshal(out, &seen); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return seen
}

// manyTasks are copies of the hello task in one folder.
func manyTasks(t *testing.T, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "many")
	from := os.DirFS(filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	for i := range n {
		if err := os.CopyFS(filepath.Join(dir, fmt.Sprintf("task-%02d", i)), from); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ended returns the trials of a job that have a result, with the result's time.
func ended(t *testing.T, job string) map[string]time.Time {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(job, "*", "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]time.Time{}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(filepath.Dir(f))] = info.ModTime()
	}
	return out
}

// whole checks that the job has this number of results, all good and none twice.
func whole(t *testing.T, all []schema.Result, n int, reward float64) {
	t.Helper()
	seen := map[schema.ID]bool{}
	for _, r := range all {
		if seen[r.ID] || r.Status != schema.StatusDone || r.Reward == nil || *r.Reward != reward || r.Fault != nil {
			t.Errorf("got %s twice or with a fault: %+v", r.ID, r)
		}
		seen[r.ID] = true
	}
	if len(seen) != n {
		t.Errorf("%d rollouts have a result, want %d", len(seen), n)
	}
}

// TestAKilledJobGoesOn kills a job of 60 rollouts before its first result and
// again in the middle, and resumes it. Results that existed before stay
// unchanged, and each trial has one result.
func TestAKilledJobGoesOn(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	binary := testenv.Binary(t)
	job := filepath.Join(t.TempDir(), "job")
	e := startSteppedEngine(t, engineScript)
	nothing := start(t, binary, "run", "-n", "2", "-j", "2", "--trainer", "upstream:"+e.url, "--plain-upstream", "--model", "served", "--out", job, manyTasks(t, 30))
	e.stand(t, 2) // both rollouts wait for their first call
	kill(t, nothing)
	if n := len(ended(t, job)); n != 0 {
		t.Fatalf("%d results, want none", n)
	}
	e.stand(t, 0)
	e.allow(21)
	first := start(t, binary, "run", "--resume", job)
	e.stand(t, 2) // 10 rollouts have had both calls, and one is between its calls
	harness.Eventually(t, "the results of 10 rollouts", 5*time.Minute, func() bool { return len(ended(t, job)) == 10 })
	kill(t, first)
	before := ended(t, job)
	e.allow(-1)
	second := start(t, binary, "run", "--resume", job, "-o", "json")
	if code := second.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, second.err)
	}
	whole(t, results(t, second), 60, 1)
	after := ended(t, job)
	for name, at := range before {
		if !after[name].Equal(at) {
			t.Errorf("%s had ended and was written again", name)
		}
	}
	if len(after) != 60 {
		t.Errorf("%d trials have a result, want 60", len(after))
	}
	third := start(t, binary, "run", "--resume", job, "-o", "json")
	if code := third.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, third.err)
	}
	whole(t, results(t, third), 60, 1)
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "turngate-run-*")); slices.ContainsFunc(left, func(dir string) bool {
		return strings.Contains(first.err.String()+planOf(t, job), dir)
	}) {
		t.Errorf("the dead process's folder is left: %v", left)
	}
	if seen := harborJob(t, job); seen.Trials != 60 || len(seen.Rewards) != 60 || seen.Trajectories != 60 {
		t.Errorf("Harbor finds %d trials, %d rewards, %d trajectories", seen.Trials, len(seen.Rewards), seen.Trajectories)
	}
}

func kill(t *testing.T, p *process) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
}

func planOf(t *testing.T, job string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(job, "turngate.json"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestAJobIsCollectedAfterItsClientWasAway checks that rollouts of a remote
// worker go on while the client is dead, and are collected and not run twice.
func TestAJobIsCollectedAfterItsClientWasAway(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	tap := b.tap(t)
	e := startSteppedEngine(t, engineScript)
	b.worker(t, "", "--sandboxes", "local", "--slots", "2", "--upstreams", e.file(t))
	job := filepath.Join(t.TempDir(), "job")
	e.allow(21)
	first := b.run(t, "-n", "2", "--mode", "transparent_proxy", "--model", "stepped", "--out", job, manyTasks(t, 30))
	e.stand(t, 2)
	harness.Eventually(t, "the results of 10 rollouts", 5*time.Minute, func() bool { return len(ended(t, job)) == 10 })
	kill(t, first)
	ran := func() map[string]int {
		out := map[string]int{}
		for line := range strings.Lines(tap.out.String()) {
			var e schema.Event
			if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &e) == nil && e.Phase != nil && e.Phase.Name == "agent" && !e.Phase.Ended {
				out[string(e.Rollout)]++
			}
		}
		return out
	}
	e.allow(20)
	e.stand(t, 2)
	// 41 calls are 20 rollouts of two calls; two more wait for a call each.
	harness.Eventually(t, "the events of 22 rollouts", 5*time.Minute, func() bool { return len(ran()) == 22 })
	if n := len(ended(t, job)); n != 10 {
		t.Errorf("%d results without a client, want the 10 of before", n)
	}
	e.allow(-1)
	second := start(t, b.binary, "run", "--resume", job, "-o", "json")
	if code := second.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, second.err)
	}
	whole(t, results(t, second), 60, 1)
	for id, n := range ran() {
		if n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
	}
	if n := len(ran()); n != 60 {
		t.Errorf("%d rollouts ran, want 60", n)
	}
}

// TestAnInterruptedJobGoesOn checks that a job that the user stops is cancelled
// on the remote worker, and that its open trials run when it is resumed.
func TestAnInterruptedJobGoesOn(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	e := startSteppedEngine(t, engineScript)
	b.worker(t, "", "--sandboxes", "local", "--slots", "2")
	job := filepath.Join(t.TempDir(), "job")
	e.allow(5)
	first := b.run(t, "--trainer", "upstream:"+e.url, "--plain-upstream", "--model", "served", "--out", job, manyTasks(t, 20))
	e.stand(t, 2)
	harness.Eventually(t, "the results of 2 rollouts", 5*time.Minute, func() bool { return len(ended(t, job)) == 2 })
	if err := first.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := first.wait(t, 10*time.Minute); code != 130 || !strings.Contains(first.err.String(), "go on with: turngate run --resume") {
		t.Fatalf("exit status %d: %s", code, first.err)
	}
	e.allow(-1)
	second := start(t, b.binary, "run", "--resume", job, "-o", "json", "--nats", b.nats.URL())
	if code := second.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, second.err)
	}
	whole(t, results(t, second), 20, 1)
}
