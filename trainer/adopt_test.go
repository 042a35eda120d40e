package trainer_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestAdopt: a process without a state file takes over the rollouts of a dead
// one, in every state, and none runs twice.
func TestAdopt(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	first := b.start(t, func(*trainer.Config) {})
	submitted := []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2"), harness.Request("alpha-3")}
	if err := first.Submit(ctx, submitted); err != nil {
		t.Fatal(err)
	}
	ran := map[schema.ID]int{b.run(t): 1}
	running, err := b.worker.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()

	second := b.start(t, func(*trainer.Config) {})
	if err := second.Adopt(ctx, append(submitted, harness.Request("alpha-4"))); err != nil {
		t.Fatal(err)
	}
	if n := second.Outstanding(); n != 4 {
		t.Fatalf("%d are outstanding, want 4", n)
	}
	heard := make(chan schema.Event, 10)
	stop, err := second.Watch(func(e schema.Event) { heard <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	running.Emit(&schema.Event{Type: schema.EventLog, Rollout: running.Request.ID, Attempt: running.Attempt, Log: &schema.LogEvent{Source: "agent", Stream: "stdout", Text: "x"}})
	running.Emit(&schema.Event{Type: schema.EventPhase, Rollout: running.Request.ID, Attempt: running.Attempt, Phase: &schema.PhaseEvent{Name: "agent"}})
	select {
	case e := <-heard:
		if e.Rollout != running.Request.ID || e.Phase == nil || e.Phase.Name != "agent" {
			t.Errorf("got %+v", e)
		}
	case <-ctx.Done():
		t.Fatal("no event came")
	}
	take := func(j *queue.Job) {
		if err := j.Done(ctx, schema.Result{ID: j.Request.ID, Attempt: j.Attempt, Status: schema.StatusDone}); err != nil {
			t.Fatal(err)
		}
		ran[j.Request.ID]++
	}
	take(running)
	for len(ran) < 4 {
		j, err := b.worker.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		take(j)
	}
	got := map[schema.ID]int{}
	if err := second.Results(ctx, func(r schema.Result) { got[r.ID]++ }); err != nil {
		t.Fatal(err)
	}
	for _, id := range []schema.ID{"alpha-1", "alpha-2", "alpha-3", "alpha-4"} {
		if ran[id] != 1 || got[id] != 1 {
			t.Errorf("%s ran %d times and gave %d results", id, ran[id], got[id])
		}
	}
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if j, err := b.worker.Take(short); err == nil {
		t.Errorf("%s would run a second time", j.Request.ID)
	}
}

// TestAResultIsReturnedOnce: a process that adopts does not return the results again that
// it has returned, also after another start with its file.
func TestAResultIsReturnedOnce(t *testing.T) {
	b := newBench(t)
	state := filepath.Join(t.TempDir(), "state")
	own := b.start(t, func(c *trainer.Config) { c.State = state })
	r := harness.Request("alpha-1")
	harness.Must(t, own.Submit(t.Context(), []schema.Request{r}))
	b.run(t)
	results := func(tr *trainer.Trainer) (n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		harness.Must(t, tr.Results(ctx, func(schema.Result) { n++ }))
		return n
	}
	if n := results(own); n != 1 {
		t.Fatalf("%d results", n)
	}
	harness.Must(t, own.Adopt(t.Context(), []schema.Request{r}))
	if n := results(own); n != 0 {
		t.Errorf("%d results for a second time", n)
	}
	own.Close()
	again := b.start(t, func(c *trainer.Config) { c.State = state })
	if n := results(again); n != 0 {
		t.Errorf("%d results for a second time, after another start", n)
	}
}
