package e2e_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
)

// twoUpstreams writes a file of upstreams with the engines model-a, which solves the
// hello task, and model-b, which does nothing.
func twoUpstreams(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "upstreams.yaml")
	text := fmt.Sprintf("model-a:\n  url: %s\n  model: served\n%smodel-b:\n  url: %s\n  model: served\n",
		startEngine(t, "aux: A title\n"+engineScript).url, more, startEngine(t, "aux: A title\nsteps:\n- text: Done.\n").url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// report reads the report of a job as JSON.
func report(t *testing.T, binary, job string) (r compare.Report) {
	t.Helper()
	p := start(t, binary, "job", "report", "-o", "json", job)
	if code := p.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, p.err)
	}
	if err := json.Unmarshal([]byte(p.out.String()), &r); err != nil {
		t.Fatalf("%v: %s", err, p.out)
	}
	return r
}

// TestAJobOfAgentsAndModels runs two agents with two models, stops in the middle and
// goes on. The report compares them, and Harbor reads the folder.
func TestAJobOfAgentsAndModels(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "local", "pi")
	job, tasks := filepath.Join(t.TempDir(), "job"), manyTasks(t, 2)
	p := start(t, b.binary, "run", "-a", "mini", "-a", "pi", "-m", "model-a", "-m", "model-b", "--upstreams", twoUpstreams(t, ""), "--agents", b.cache, "--agent-timeout", "10m", "-n", "2", "--out", job, tasks)
	if code := p.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, p.err)
	}
	check := func(r compare.Report) {
		t.Helper()
		want := []jobs.Variant{{Agent: "mini", Model: "model-a"}, {Agent: "mini", Model: "model-b"}, {Agent: "pi", Model: "model-a"}, {Agent: "pi", Model: "model-b"}}
		if len(r.Variants) != 4 || len(r.Tasks) != 2 {
			t.Fatalf("%d variants, %d tasks", len(r.Variants), len(r.Tasks))
		}
		for i, c := range r.Variants {
			mean, low, high := 1.0, 0.5101, 1.0 // Wilson: 4 of 4, and 0 of 4
			if c.Model == "model-b" {
				mean, low, high = 0, 0, 0.4899
			}
			if c.Variant != want[i] || c.Ended != 4 || c.Trials != 4 || c.Mean == nil || *c.Mean != mean || c.PassAt[1] != mean || c.PassAt[2] != mean || c.CompletionTokens < 4*2 {
				t.Errorf("got %+v, want %+v", c, want[i])
			}
			if c.Interval == nil || c.Interval[0] < low-1e-4 || c.Interval[0] > low+1e-4 || c.Interval[1] < high-1e-4 || c.Interval[1] > high+1e-4 {
				t.Errorf("%s: interval %v, want %v to %v", c.Label(), c.Interval, low, high)
			}
			for _, row := range r.Tasks {
				if one := row.Variants[i]; one.Trials != 2 || one.Ended != 2 || *one.Mean != mean {
					t.Errorf("%s: got %+v", row.Dir, one)
				}
			}
		}
	}
	check(report(t, b.binary, job))
	table := regexp.MustCompile(`(?m)^mini +model-a +4 of 4 +1 +0\.51 to 1 +pass@1 1, pass@2 1 `)
	shown := start(t, b.binary, "job", "show", job)
	if code := shown.wait(t, 10*time.Minute); code != 0 || !table.MatchString(shown.out.String()) || !table.MatchString(p.err.String()) || !strings.Contains(shown.out.String(), "agent mini, pi, model model-a, model-b") {
		t.Errorf("exit status %d: %s", code, shown.out)
	}

	plan, _, err := jobs.Read(job)
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, trial := range plan.Trials { // as if the process was killed before it wrote these results
		if trial.Agent == "pi" && trial.Index == 1 {
			lost++
			if err := os.RemoveAll(filepath.Join(job, trial.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := report(t, b.binary, job); lost != 4 || r.Variants[2].Ended != 2 || r.Variants[0].Ended != 4 {
		t.Errorf("after %d results were lost: %+v", lost, r.Variants)
	}
	again := start(t, b.binary, "run", "--resume", job)
	if code := again.wait(t, 10*time.Minute); code != 0 || !strings.Contains(again.err.String(), "4 of 16 trials to run") {
		t.Fatalf("exit status %d: %s", code, again.err)
	}
	check(report(t, b.binary, job))

	one := filepath.Join(t.TempDir(), "one")
	if p := start(t, b.binary, "run", "-a", "mini", "-m", "model-b", "--upstreams", twoUpstreams(t, ""), "--out", one, tasks); p.wait(t, 10*time.Minute) != 0 {
		t.Fatalf("%s", p.err)
	}
	diff := start(t, b.binary, "job", "diff", "--all", one, job)
	if code := diff.wait(t, 10*time.Minute); code != 0 || strings.Count(diff.out.String(), "[mini model-b]") != 2 || !strings.Contains(diff.out.String(), "2 same\n6 missing in A\n") {
		t.Errorf("exit status %d: %s", code, diff.out)
	}
	seen := harborJob(t, job)
	if seen.Trials != 16 || len(seen.Rewards) != 16 {
		t.Errorf("Harbor finds %d trials, %d rewards", seen.Trials, len(seen.Rewards))
	}
	data, err := os.ReadFile(filepath.Join(job, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"mini__model-a__many"`, `"mini__model-b__many"`, `"pi__model-a__many"`, `"pi__model-b__many"`} {
		if strings.Count(string(data), key) != 1 {
			t.Errorf("result.json has no evaluation %s", key)
		}
	}
}

// TestALimitOfCostStopsAJob with the prices of a file, and with a worker that has the
// prices itself. The job goes on with a higher limit.
func TestALimitOfCostStopsAJob(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	file := twoUpstreams(t, "  price: {input: 1000, output: 2000}\n") // a call has 3 + 2 tokens, a rollout two calls
	b.worker(t, "", "--sandboxes", "local", "--slots", "2", "--upstreams", file)
	const cost = 2 * (3*0.001 + 2*0.002)
	for name, args := range map[string][]string{
		"file":   {b.binary, "run", "--upstreams", file, "-m", "model-a", "-j", "2"},
		"worker": {b.binary, "run", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), "--mode", "transparent_proxy", "-m", "model-a"},
	} {
		t.Run(name, func(t *testing.T) {
			job := filepath.Join(t.TempDir(), "job")
			p := start(t, append(args, "--max-cost", "0.02", "-o", "json", "--out", job, manyTasks(t, 12))...)
			if code := p.wait(t, 10*time.Minute); code != 3 || !strings.Contains(p.err.String(), "its limit of 0.02 USD") || !strings.Contains(p.err.String(), "--max-cost USD") {
				t.Fatalf("exit status %d: %s", code, p.err)
			}
			n := len(results(t, p))
			if shown := start(t, b.binary, "job", "show", job); n < 2 || n == 12 || shown.wait(t, 10*time.Minute) != 0 || !strings.Contains(shown.out.String(), "its limit of 0.02 USD") {
				t.Errorf("%d results: %s", n, shown.out)
			}
			more := start(t, b.binary, "run", "--resume", job, "--max-cost", "100", "-o", "json")
			if code := more.wait(t, 10*time.Minute); code != 0 {
				t.Fatalf("exit status %d: %s", code, more.err)
			}
			for _, r := range results(t, more) {
				if c := r.CostUSD(); c == nil || math.Abs(*c-cost) > 1e-9 || *r.Reward != 1 {
					t.Errorf("got %+v, cost %v", r, c)
				}
			}
			if r := report(t, b.binary, job); len(r.Variants) != 1 || r.Variants[0].CostUSD == nil || math.Abs(*r.Variants[0].CostUSD-12*cost) > 1e-9 {
				t.Errorf("got %+v", r.Variants)
			}
			if seen := harborJob(t, job); seen.Trials != 12 || math.Abs(seen.Cost-12*cost) > 1e-9 {
				t.Errorf("Harbor finds %d trials, a cost of %v", seen.Trials, seen.Cost)
			}
			show := start(t, b.binary, "rollout", "show", job)
			if code := show.wait(t, 10*time.Minute); code != 0 || strings.Count(show.out.String(), ", $0.0070") != 2*12 {
				t.Errorf("exit status %d: %s", code, show.out)
			}
		})
	}
	t.Run("no price", func(t *testing.T) {
		p := start(t, b.binary, "run", "--upstreams", file, "-m", "model-b", "--max-cost", "1", manyTasks(t, 1))
		if code := p.wait(t, 10*time.Minute); code != 2 || !strings.Contains(p.err.String(), "--max-cost: the upstream model-b has no price") {
			t.Errorf("exit status %d: %s", code, p.err)
		}
	})
}

// sixTasks returns the first six tasks of the folder TURNGATE_TASKS with the sandbox for them,
// or else six copies of the hello task.
func sixTasks(t *testing.T) (paths []string, sandbox string) {
	t.Helper()
	folder, sandbox := os.Getenv("TURNGATE_TASKS"), "docker"
	if folder == "" {
		folder, sandbox = manyTasks(t, 6), "local"
	} else {
		testenv.Image(t) // skips without Docker
	}
	found, err := filepath.Glob(filepath.Join(folder, "*", "instruction.md"))
	if err != nil || len(found) < 6 {
		t.Fatalf("%s has %d tasks, want 6 or more: %v", folder, len(found), err)
	}
	for _, at := range found[:6] {
		paths = append(paths, filepath.Dir(at))
	}
	return paths, sandbox
}

// TestAJobIsComparedSharedAndVerifiedAgain: two agents with two models and six tasks make a
// matrix, a comparison with another job, and a file to share. After a change of the tests the
// rewards are others, without an agent, and Harbor reads both folders.
func TestAJobIsComparedSharedAndVerifiedAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "local", "pi")
	tasks, sandbox := sixTasks(t)
	dir := t.TempDir()
	run := func(out, upstreams string, more ...string) {
		t.Helper()
		args := append([]string{b.binary, "run", "--keep-workdir", "--sandbox", sandbox, "-j", "2", "--upstreams", upstreams, "--agents", b.cache, "--agent-timeout", "10m", "--out", out}, more...)
		if p := start(t, append(args, tasks...)...); p.wait(t, 30*time.Minute) != 0 {
			t.Fatalf("%s", p.err)
		}
	}
	job := filepath.Join(dir, "job")
	run(job, twoUpstreams(t, "  price: {input: 1000, output: 2000}\n"), "-a", "mini", "-a", "pi", "-m", "model-a", "-m", "model-b")
	r := report(t, b.binary, job)
	if len(r.Variants) != 4 || len(r.Tasks) != 6 {
		t.Fatalf("%d variants, %d tasks", len(r.Variants), len(r.Tasks))
	}
	for _, v := range r.Variants {
		mean := 0.0
		if v.Model == "model-a" && sandbox == "local" {
			mean = 1
		}
		if v.Ended != 6 || v.Mean == nil || *v.Mean != mean || v.Interval == nil || v.PassAt[1] != mean || (v.CostUSD != nil) != (v.Model == "model-a") {
			t.Errorf("%+v", v)
		}
	}

	// In another job the model does nothing, so the tasks that it solved flip.
	other := filepath.Join(dir, "other")
	idle := filepath.Join(dir, "idle.yaml")
	harness.Must(t, os.WriteFile(idle, []byte("model-a:\n  url: "+startEngine(t, "aux: A title\nsteps:\n- text: Done.\n").url+"\n  model: served\n"), 0o600))
	run(other, idle, "-a", "mini", "-m", "model-a")
	diff := start(t, b.binary, "job", "diff", job, other)
	if code := diff.wait(t, 10*time.Minute); code != 0 || sandbox == "local" && !strings.Contains(diff.out.String(), "6 worse\n18 missing in B\n") {
		t.Errorf("exit status %d: %s", code, diff.out)
	}

	page := filepath.Join(dir, "job.html")
	share := start(t, b.binary, "job", "share", "-o", page, job)
	if code := share.wait(t, 10*time.Minute); code != 0 || !strings.Contains(share.out.String(), "24 rollouts, ") {
		t.Errorf("exit status %d: %s%s", code, share.out, share.err)
	}
	if info, err := os.Stat(page); err != nil || info.Size() < 10_000 {
		t.Errorf("%v, %v", info, err)
	}

	tests := filepath.Join(dir, "tests")
	harness.Must(t, os.Mkdir(tests, 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(tests, "test.sh"), []byte("#!/bin/sh\necho 0.5 > /logs/verifier/reward.txt\n"), 0o755))
	before := digestOf(t, job)
	code, seen, log := b.regrade(t, "--tests", tests, job)
	if code != 0 || len(seen.Regraded)+len(seen.LeftOut) != 24 || sandbox == "local" && len(seen.LeftOut) > 0 || digestOf(t, job) != before {
		t.Fatalf("status %d: %+v\n%s", code, seen, log)
	}
	olds := 0.0
	for _, one := range seen.Regraded {
		if one.Old == nil || one.New == nil || *one.New != 0.5 || one.Fault != nil {
			t.Errorf("%+v", one)
			continue
		}
		olds += *one.Old
	}
	if sandbox == "local" && olds != 12 {
		t.Errorf("the old rewards together are %v, want 12", olds)
	}
	for at, trials := range map[string]int{job: 24, other: 6, seen.Job: len(seen.Regraded)} {
		if got := harborJob(t, at); got.Trials != trials || len(got.Rewards) != trials {
			t.Errorf("%s: Harbor finds %d trials, %d rewards, want %d", at, got.Trials, len(got.Rewards), trials)
		}
	}
}
