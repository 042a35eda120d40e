package jobs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

func TestRetriesAreRead(t *testing.T) {
	got, err := jobs.ParseRetries("infrastructure=3, agent_timeout=1,no_reward=0")
	if err != nil || len(got) != 3 || got["infrastructure"] != 3 || got["agent_timeout"] != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := jobs.ParseRetries(""); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"oom":               "want CAUSE=NUMBER",
		"oom=x":             "want CAUSE=NUMBER",
		"oom=-1":            "from 0 to 100",
		"oom=1,oom=2":       `"oom" is given twice`,
		"weather=1":         `"weather" is not a cause: want infrastructure, a code (agent_error, bad_answer`,
		"weather_timeout=1": "with its party in front (agent, task, sandbox, trainer, worker, user)",
		"cancelled=1":       `"cancelled" is not a cause`,
	} {
		if _, err := jobs.ParseRetries(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// Each code of docs/faults.md that a result can have is a cause.
func TestCausesAreOnThePageOfFaults(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "faults.md"))
	harness.Must(t, err)
	causes := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		code := strings.Trim(cells[1], " `")
		_, err := jobs.ParseRetries(code + "=1")
		if ends := strings.Contains(cells[4], "`failed`") || strings.Contains(cells[4], "`dead`") || strings.Contains(cells[4], "`done`, verified"); ends && err != nil && code != schema.CodeTranscript {
			t.Errorf("%s ends a rollout: %v", code, err)
		}
		if err == nil {
			causes++
		}
	}
	if causes < 25 {
		t.Errorf("%d codes of the page are causes", causes)
	}
}

func TestTheNarrowestCauseCounts(t *testing.T) {
	retries := jobs.Retries{"infrastructure": 1, "timeout": 1, "agent_timeout": 1}
	for name, tt := range map[string]struct {
		status    schema.Status
		code, who string
		want      string
	}{
		"agent":          {schema.StatusDone, "timeout", "agent", "agent_timeout"},
		"verifier":       {schema.StatusFailed, "timeout", "task", "timeout"},
		"sandbox":        {schema.StatusDead, "timeout", "sandbox", "timeout"},
		"worker":         {schema.StatusDead, "internal", "worker", "infrastructure"},
		"a note":         {schema.StatusDone, "transcript_truncated", "worker", ""},
		"another":        {schema.StatusFailed, "image", "task", ""},
		"a cancel":       {schema.StatusCancelled, "timeout", "agent", ""},
		"of the trainer": {schema.StatusFailed, "internal", "trainer", ""},
	} {
		if got := retries.CauseOf(&schema.Result{Status: tt.status, Fault: schema.Faultf("x", tt.code, tt.who, "m")}); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
	if got := retries.CauseOf(&schema.Result{Status: schema.StatusDone}); got != "" {
		t.Errorf("without a fault: %q", got)
	}
}

// A result with a reward is final, unless the reward is below a bound.
func TestARewardIsKept(t *testing.T) {
	for name, tt := range map[string]struct {
		reward, below *float64
		keeps         bool
	}{
		"none":                  {nil, nil, false},
		"none, with a bound":    {nil, new(0.5), false},
		"zero":                  {new(0.0), nil, false},
		"less than zero":        {new(-1.0), nil, false},
		"above zero":            {new(0.01), nil, true},
		"one":                   {new(1.0), nil, true},
		"below the bound":       {new(0.49), new(0.5), false},
		"the bound":             {new(0.5), new(0.5), true},
		"above the bound":       {new(0.6), new(0.5), true},
		"zero, with bound zero": {new(0.0), new(0.0), true},
	} {
		if got := jobs.Keeps(&schema.Result{Reward: tt.reward}, tt.below); got != tt.keeps {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A trial whose agent fails after it has solved the task does not run again; with a bound
// above its reward it does, and the report has the reward that was replaced.
func TestATrialWithARewardIsFinal(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	for name, tt := range map[string]struct {
		below *float64
		again int
	}{"no bound": {nil, 0}, "a bound above it": {new(2.0), 1}} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			w := begin(t, 1, refusing(1, &calls))
			harness.Must(t, w.Run(t.Context(), newTrainer(t, n), jobs.Options{Retries: jobs.Retries{"refused": 1}, RerunBelow: tt.below}))
			dir := w.Job.Dir
			w.Job.Close()
			p, results, err := jobs.Read(dir)
			harness.Must(t, err)
			if len(results) != 1 || len(p.Trials[0].Retried) != tt.again || results[0].Reward == nil {
				t.Fatalf("%d results, ran again %d times: %+v", len(results), len(p.Trials[0].Retried), results)
			}
			if causes := p.Causes(); tt.again == 1 && (len(causes) != 1 || causes[0].BestReward == nil || *causes[0].BestReward != *p.Trials[0].Retried[0].Reward) {
				t.Errorf("the causes are %+v", causes)
			}
		})
	}
}

// refusing refuses the first n calls, so that their agents fail.
func refusing(n int64, calls *atomic.Int64) trainer.Answerer {
	return func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		if calls.Add(1) <= n {
			return nil, &schema.Fault{Code: schema.CodeInvalid, Message: "not now", Status: 400}
		}
		return done(ctx, c)
	}
}

// A trial runs again after its agent failed. Its earlier results stay, and count only as
// retries.
func TestATrialRunsAgain(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	var calls atomic.Int64
	w, s := begin(t, 3, refusing(2, &calls)), &seen{}
	harness.Must(t, w.Run(t.Context(), newTrainer(t, n), jobs.Options{Progress: s, Retries: jobs.Retries{"refused": 2}, RerunBelow: new(2.0)}))
	dir := w.Job.Dir
	w.Job.Close()
	p, results, err := jobs.Read(dir)
	harness.Must(t, err)
	if len(results) != 3 || calls.Load() != 5 || s.results.Load() != 3 || s.again.Load() != 2 {
		t.Fatalf("%d results of %d calls, of which %d and %d were reported", len(results), calls.Load(), s.results.Load(), s.again.Load())
	}
	for _, r := range results {
		if r.Fault != nil {
			t.Errorf("got %+v", r.Fault)
		}
	}
	report := compare.NewReport(&p, results)
	if len(report.Retries) != 1 || report.Retries[0].Count != 2 || report.Retries[0].Code != schema.CodeRefused || report.Variants[0].Faults() != 0 {
		t.Errorf("got %+v", report)
	}
	before := 0
	for _, trial := range p.Trials {
		for i, r := range trial.Retried {
			before++
			for _, name := range []string{string(r.Rollout), filepath.Join(dir, trial.RetriedDir(i))} {
				list, err := recorded.Find(filepath.Dir(dir), name)
				if err != nil || len(list) != 1 || list[0].Result == nil || list[0].Result.Fault == nil || list[0].ID != r.Rollout || r.Cause != "refused" {
					t.Errorf("%s: got %+v, %v", name, list, err)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, trial.RetriedDir(i), "result.json")); err != nil {
				t.Error(err)
			}
		}
	}
	if before != 2 {
		t.Errorf("%d earlier rollouts", before)
	}
}

// A trial that fails each time keeps its last result when its retries are used up.
func TestRetriesAreUsedUp(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	var calls atomic.Int64
	w := begin(t, 1, refusing(100, &calls))
	harness.Must(t, w.Run(t.Context(), newTrainer(t, n), jobs.Options{Retries: jobs.Retries{"agent_refused": 2, "oom": 5}, RerunBelow: new(2.0)}))
	results, trial := w.Job.Results(), w.Job.Plan.Trials[0]
	if len(results) != 1 || results[0].Fault == nil || calls.Load() != 3 || len(trial.Retried) != 2 {
		t.Errorf("%d results of %d calls, retried %+v", len(results), calls.Load(), trial.Retried)
	}
}

// The results after which trials ran again count for the limits of a resumed job.
func TestRetriesCountForTheLimits(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	var calls atomic.Int64
	costs := costly(&calls, true)
	var tries atomic.Int64
	answer := func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) { // the first two agents fail after their calls
		r, err := costs(ctx, c)
		if tries.Add(1) <= 2 && err == nil {
			r.Message = []byte(`{"role":"assistant","content":"fail"}`)
		}
		return r, err
	}
	w := begin(t, 1, answer)
	tr := newTrainer(t, n)
	harness.Must(t, w.Run(t.Context(), tr, jobs.Options{Retries: jobs.Retries{"exit": 2}, RerunBelow: new(2.0)}))
	if r := w.Job.Results()[0]; r.Fault != nil || len(w.Job.Plan.Trials[0].Retried) != 2 {
		t.Fatalf("got %+v, retried %d times", r, len(w.Job.Plan.Trials[0].Retried))
	}
	last := w.Job.Plan.Trials[0]
	next, err := last.Next()
	harness.Must(t, err)
	harness.Must(t, w.Job.Rerun([]jobs.Trial{next})) // one trial is left, and 1 USD is spent by the earlier ones
	tr.Close()
	again, err := jobs.Resume(t.Context(), w.Job, rules(answer), nil)
	harness.Must(t, err)
	var limit *jobs.LimitError
	if err := again.Run(t.Context(), newTrainer(t, n), jobs.Options{Limits: jobs.Limits{CostUSD: 0.9}}); !errors.As(err, &limit) || calls.Load() != 3 {
		t.Errorf("got %v, %d calls", err, calls.Load())
	}
}

// A process that died after it had saved the plan left the earlier result in the
// trial's folder. The next rollout of the trial moves it.
func TestAnEarlierResultIsKeptAfterACrash(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	var calls atomic.Int64
	w := begin(t, 1, refusing(1, &calls))
	harness.Must(t, w.Run(t.Context(), newTrainer(t, n), jobs.Options{Retries: jobs.Retries{"refused": 1}, RerunBelow: new(2.0)}))
	trial, dir := w.Job.Plan.Trials[0], w.Job.Dir
	w.Job.Close()
	kept := filepath.Join(dir, trial.RetriedDir(0))
	harness.Must(t, os.RemoveAll(filepath.Join(dir, trial.Name)))
	harness.Must(t, os.Rename(kept, filepath.Join(dir, trial.Name)))
	j, err := jobs.Open(dir)
	harness.Must(t, err)
	defer j.Close()
	if len(j.Missing()) != 1 {
		t.Fatalf("the earlier result counts: %+v", j.Results())
	}
	harness.Must(t, j.Begin(trial.Rollout))
	if _, err := os.Stat(filepath.Join(kept, "result.json")); err != nil {
		t.Error(err)
	}
}
