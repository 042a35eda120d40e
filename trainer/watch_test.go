package trainer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
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

// TestALostRequestIsNotBehindOthers: a rollout whose request the server has lost says so while
// slots are free.
func TestALostRequestIsNotBehindOthers(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.leave()
	offer := schema.Offer{Backends: []string{"dummy"}, Agents: []string{"mini"}}
	side, err := queue.NewWorker(b.nats.Worker(t, "w1"), queue.WorkerConfig{Worker: "w1", Instance: "i2", Slots: 2, Offer: func() schema.Offer { return offer }})
	harness.Must(t, err)
	testenv.RunWorker(t, side)
	tr := b.start(t, func(*trainer.Config) {})
	notes := make(chan string, 64)
	stop, err := tr.Watch(func(e schema.Event) {
		if e.Wait != nil {
			notes <- e.Wait.Note
		}
	})
	harness.Must(t, err)
	defer stop()
	harness.Must(t, tr.Submit(t.Context(), []schema.Request{harness.Request("alpha-1")}))
	stream := b.stream(t, subjects.Queue("alpha"))
	harness.Must(t, stream.DeleteMsg(t.Context(), stream.CachedInfo().State.LastSeq))
	harness.Eventually(t, "the reason", 5*time.Minute, func() bool {
		return strings.Contains(<-notes, "the server has lost its request, which is submitted again within 5m0s")
	})
}
