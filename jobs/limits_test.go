package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// costly answers with 10 tokens for 0.5 USD, and counts the answers. Without a price
// the cost is not known.
func costly(calls *atomic.Int64, priced bool) trainer.Answerer {
	return func(context.Context, *trainer.Call) (*schema.Reply, error) {
		calls.Add(1)
		r := &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 7, CompletionTokens: 3}}
		if cost := 0.5; priced {
			r.Usage.CostUSD = &cost
		}
		return r, nil
	}
}

// TestALimitStopsAJob: rollouts that have begun get their results, the others run when
// the job goes on with a higher limit. Each answered call is in one result.
func TestALimitStopsAJob(t *testing.T) {
	testenv.Slow(t)
	const trials = 30
	for name, tt := range map[string]struct {
		limits, higher jobs.Limits
		priced         bool
		reason         string
		least          int // rollouts with a result when the limit is reached
	}{
		"cost":         {jobs.Limits{CostUSD: 1.5}, jobs.Limits{CostUSD: 100}, true, "its limit of 1.5 USD", 3},
		"tokens":       {jobs.Limits{Tokens: 25}, jobs.Limits{}, false, "its limit of 25", 3},
		"unknown cost": {jobs.Limits{CostUSD: 100}, jobs.Limits{}, false, "its upstream needs a price", 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := testenv.StartNATS(t, "alpha")
			startWorker(t, n)
			var calls atomic.Int64
			w := begin(t, trials, costly(&calls, tt.priced))
			tr := newTrainer(t, n)
			var limit *jobs.LimitError
			if err := w.Run(t.Context(), tr, jobs.Options{Remote: true, Limits: tt.limits}); !errors.As(err, &limit) || !strings.Contains(limit.Reason, tt.reason) {
				t.Fatalf("got %v", err)
			}
			tr.Close()
			ended := w.Job.Results()
			if len(ended) < tt.least || len(ended) == trials || int64(len(ended)) != calls.Load() || w.Job.Plan.Stopped != limit.Reason {
				t.Errorf("%d results of %d calls, stopped by %q", len(ended), calls.Load(), w.Job.Plan.Stopped)
			}
			for _, r := range ended {
				if r.Status != schema.StatusDone || r.Tokens() != 10 || (r.CostUSD() != nil) != tt.priced {
					t.Errorf("got %+v", r)
				}
			}
			dir := w.Job.Dir
			w.Job.Close()
			resume := func(o jobs.Limits) (*jobs.Work, error) {
				t.Helper()
				j, err := jobs.Open(dir)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(j.Close)
				w, err := jobs.Resume(t.Context(), j, rules(costly(&calls, tt.priced)), nil)
				if err != nil {
					t.Fatal(err)
				}
				tr := newTrainer(t, n)
				defer tr.Close()
				return w, w.Run(t.Context(), tr, jobs.Options{Remote: true, Limits: o})
			}
			before := calls.Load()
			same, err := resume(tt.limits)
			if !errors.As(err, &limit) || calls.Load() != before || len(same.Job.Results()) != len(ended) {
				t.Errorf("with the same limit: %v, %d more calls", err, calls.Load()-before)
			}
			same.Job.Close()
			last, err := resume(tt.higher)
			if err != nil || len(last.Job.Missing()) != 0 || calls.Load() != trials || last.Job.Plan.Stopped != "" {
				t.Errorf("with a higher limit: %v, %d missing, %d calls", err, len(last.Job.Missing()), calls.Load())
			}
			p, results, err := jobs.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			s := jobs.Sum(len(p.Trials), results)
			if tt.priced && (s.CostUSD == nil || *s.CostUSD != trials*0.5 || s.Unpriced != 0) || !tt.priced && (s.CostUSD != nil || s.Unpriced != trials) {
				t.Errorf("the cost is %v, %d rollouts without one", s.CostUSD, s.Unpriced)
			}
		})
	}
}

// TestTheResultThatReachesALimitIsKept: the calls of a worker's upstream count with the result. The
// other rollout has not begun, as no worker has its GPU.
func TestTheResultThatReachesALimitIsKept(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	var calls atomic.Int64
	answer := costly(&calls, true)
	startWorker(t, n, models.Upstream{Name: "up", Answer: func(ctx context.Context, _ *schema.Call, _ func(*schema.Delta) error) (*schema.Reply, error) {
		return answer(ctx, nil)
	}})
	r := rules(nil)
	r.Request = func(t *tasks.Task, v jobs.Variant) (schema.Request, error) {
		q := t.Request
		q.Mode, q.Model.Upstream = schema.ModeProxy, "up"
		if v.Model == "elsewhere" {
			q.Sandbox.GPUs = 1
		}
		return q, nil
	}
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "command"}, {Agent: "command", Model: "elsewhere"}}, Backend: "dummy", Attempts: 1}
	w, err := jobs.Begin(t.Context(), filepath.Join(t.TempDir(), "job"), p, []jobs.Task{{Name: "task", Dir: "/tasks/task"}}, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Job.Close)
	var limit *jobs.LimitError
	if err := w.Run(t.Context(), newTrainer(t, n), jobs.Options{Limits: jobs.Limits{Tokens: 5}}); !errors.As(err, &limit) {
		t.Errorf("got %v", err)
	}
	if ended := w.Job.Results(); len(ended) != 1 || ended[0].Tokens() != 10 || len(w.Job.Missing()) != 1 {
		t.Errorf("got %+v", ended)
	}
}

// TestALimitThatIsReachedLast stops nothing.
func TestALimitThatIsReachedLast(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	var calls atomic.Int64
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "command"}}, Backend: "dummy", Attempts: 1}
	w, err := jobs.Begin(t.Context(), filepath.Join(t.TempDir(), "job"), p, []jobs.Task{{Name: "task", Dir: "/tasks/task"}}, rules(costly(&calls, true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Job.Close)
	if err := w.Run(t.Context(), newTrainer(t, n), jobs.Options{Limits: jobs.Limits{Tokens: 1}}); err != nil || len(w.Job.Missing()) != 0 {
		t.Errorf("got %v", err)
	}
}

// TestSandboxesCountForTheCost: their prices are apart from those of calls in a summary, and
// count for the limit.
func TestSandboxesCountForTheCost(t *testing.T) {
	call, box := 0.5, 0.25
	calls := schema.SortedMap[schema.CallStats]{schema.TagAgent: {Count: 1, PromptTokens: 7, CostUSD: &call}}
	results := []schema.Result{
		{ID: "alpha-1", Calls: calls, Usage: &schema.ResultUsage{SandboxSeconds: 10, SandboxUSD: &box}},
		{ID: "alpha-2", Calls: calls, Usage: &schema.ResultUsage{SandboxSeconds: 20, SandboxUSD: &box}},
		{ID: "alpha-3", Calls: calls, Usage: &schema.ResultUsage{SandboxSeconds: 5}},
		{ID: "alpha-4"},
	}
	s := jobs.Sum(4, results)
	if s.CostUSD == nil || *s.CostUSD != 1.5 || s.SandboxSeconds != 35 || s.SandboxUSD == nil || *s.SandboxUSD != 0.5 || s.SandboxUnpriced != 1 {
		t.Errorf("got %+v", s)
	}
	if s := jobs.Sum(2, results[2:]); s.SandboxUSD != nil || s.SandboxSeconds != 5 || s.SandboxUnpriced != 1 {
		t.Errorf("without a price: %+v", s)
	}
	if err := jobs.Over(jobs.Limits{CostUSD: 2}, results); err == nil || !strings.Contains(err.Reason, "the cost of its model calls and sandboxes has reached its limit of 2 USD") {
		t.Errorf("at the limit: %v", err)
	}
	if err := jobs.Over(jobs.Limits{CostUSD: 0.00001}, results); err == nil || !strings.HasSuffix(err.Reason, "its limit of 0.00001 USD") {
		t.Errorf("a small limit: %v", err)
	}
	if err := jobs.Over(jobs.Limits{CostUSD: 2.01}, results); err != nil {
		t.Errorf("below the limit: %v", err)
	}
}
