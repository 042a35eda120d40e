package queue_test

import (
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/schema"
)

// backlog reads a lane of alpha's queue as a watcher.
func (b *bench) backlog(t *testing.T, as *broker.Broker, lane string) telemetry.Waiting {
	t.Helper()
	all, err := queue.ReadBacklog(t.Context(), as)
	harness.Must(t, err)
	for _, w := range all.Lanes {
		if w.Trainer == "alpha" && w.Lane == lane {
			return w
		}
	}
	t.Fatalf("no lane %s of alpha in %+v", lane, all.Lanes)
	return telemetry.Waiting{}
}

func (b *bench) ops(t *testing.T) *broker.Broker {
	t.Helper()
	return b.Dial(t, b.Server.OpsCreds(), broker.InboxFor(broker.RoleOps, broker.RoleOps))
}

// TestTheBacklog reads the depth and the age of a lane while requests are submitted,
// taken and ended.
func TestTheBacklog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ops := b.ops(t)
	if w := b.backlog(t, ops, "p2"); w != (telemetry.Waiting{Trainer: "alpha", Lane: "p2"}) {
		t.Errorf("of an empty queue: %+v", w)
	}
	before := time.Now()
	b.Submit(t, harness.Request("alpha-1"))
	middle := time.Now()
	b.Submit(t, harness.Request("alpha-2"))
	b.Submit(t, harness.Request("alpha-3"))
	after := time.Now()
	if w := b.backlog(t, ops, "p2"); w.Queued != 3 || w.Taken != 0 || w.Oldest.Before(before) || w.Oldest.After(middle) {
		t.Errorf("of three requests: %+v", w)
	}
	job := b.Take(t)
	for _, as := range []*broker.Broker{ops, b.Broker} {
		if w := b.backlog(t, as, "p2"); w.Queued != 2 || w.Taken != 1 || w.Oldest.Before(middle) || w.Oldest.After(after) {
			t.Errorf("after one was taken: %+v", w)
		}
	}
	harness.Must(t, job.Done(t.Context(), outcome(job)))
	if w := b.backlog(t, ops, "p2"); w.Queued != 2 || w.Taken != 0 {
		t.Errorf("after one has ended: %+v", w)
	}
	if w := b.backlog(t, ops, "p0"); w.Queued != 0 || !w.Oldest.IsZero() {
		t.Errorf("of another lane: %+v", w)
	}
}

// TestTheBacklogOfParkedRequests parks a request for each reason. One with a delay
// counts as delayed until a worker takes it.
func TestTheBacklogOfParkedRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	metrics := telemetry.New("test")
	jobs := keepTaking(t, b.NewWorker(t, "a", offers("dummy", 2), func(c *queue.WorkerConfig) { c.Metrics = metrics.Queue() }))
	b.NewWorker(t, "d", offers("special", 1))
	ops := b.ops(t)
	soon, late := harness.Request("alpha-soon"), harness.Request("alpha-late")
	soon.DelayMS, late.DelayMS = 300, time.Hour.Milliseconds()
	for _, r := range []schema.Request{late, soon, special("alpha-special")} {
		b.Submit(t, r)
	}
	job := <-jobs
	if job.Request.ID != "alpha-soon" {
		t.Fatalf("took %s", job.Request.ID)
	}
	harness.Eventually(t, "one delayed, one unfit, one taken", time.Minute, func() bool {
		w := b.backlog(t, ops, "p2")
		return w.Queued == 0 && w.Delayed == 1 && w.Unfit == 1 && w.Taken == 1
	})
	harness.Must(t, job.Done(t.Context(), outcome(job)))
	harness.Eventually(t, "one delayed, one unfit", time.Minute, func() bool {
		w := b.backlog(t, ops, "p2")
		return w.Delayed == 1 && w.Unfit == 1 && w.Taken == 0
	})
}
