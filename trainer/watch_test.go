package trainer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestAQueuedRolloutSaysWhy it waits for a worker, and when one has taken it.
func TestAQueuedRolloutSaysWhy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tr := b.start(t, func(*trainer.Config) {})
	heard := make(chan schema.Event, 64)
	stop, err := tr.Watch(func(e schema.Event) { heard <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := tr.Submit(ctx, []schema.Request{harness.Request("alpha-1")}); err != nil {
		t.Fatal(err)
	}
	next := func() schema.WaitEvent {
		t.Helper()
		for {
			select {
			case e := <-heard:
				if e.Rollout == "alpha-1" && e.Wait != nil {
					return *e.Wait
				}
			case <-ctx.Done():
				t.Fatal("nothing was reported")
			}
		}
	}
	if w := next(); w.For != schema.WaitWorker || w.Ended || w.Note == "" || w.MS < 2000 {
		t.Errorf("got %+v", w)
	}
	job, err := b.worker.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	job.Emit(&schema.Event{Type: schema.EventPhase, Rollout: job.Request.ID, Attempt: job.Attempt, Phase: &schema.PhaseEvent{Name: "create"}})
	for {
		w := next()
		if w.Ended {
			break
		}
		if !strings.Contains(w.Note, "slots") && !strings.Contains(w.Note, "worker") {
			t.Errorf("got %+v", w)
		}
	}
	if err := job.Done(ctx, schema.Result{ID: job.Request.ID, Attempt: job.Attempt, Status: schema.StatusDone}); err != nil {
		t.Fatal(err)
	}
}
