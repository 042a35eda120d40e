package queue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// backlog reads a lane of alpha's queue as a watcher.
func (b *bench) backlog(t *testing.T, as *broker.Broker, lane string) telemetry.Waiting {
	t.Helper()
	all, err := queue.NewBacklogs(as).Read(t.Context())
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
// taken and ended. The server counts a message a moment after it has stored it.
func TestTheBacklog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ops := b.ops(t)
	until := func(as *broker.Broker, lane string, queued, taken uint64) (w telemetry.Waiting) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("%d queued and %d taken in %s", queued, taken, lane), 5*time.Minute, func() bool {
			w = b.backlog(t, as, lane)
			return w.Queued == queued && w.Taken == taken
		})
		return w
	}
	if w := b.backlog(t, ops, "p2"); w != (telemetry.Waiting{Trainer: "alpha", Lane: "p2"}) {
		t.Errorf("of an empty queue: %+v", w)
	}
	before := time.Now()
	b.Submit(t, harness.Request("alpha-1"))
	middle := time.Now()
	b.Submit(t, harness.Request("alpha-2"))
	b.Submit(t, harness.Request("alpha-3"))
	after := time.Now()
	if w := until(ops, "p2", 3, 0); w.Oldest.Before(before) || w.Oldest.After(middle) {
		t.Errorf("of three requests: %+v", w)
	}
	job := b.Take(t)
	for _, as := range []*broker.Broker{ops, b.Broker} {
		if w := until(as, "p2", 2, 1); w.Oldest.Before(middle) || w.Oldest.After(after) {
			t.Errorf("after one was taken: %+v", w)
		}
	}
	harness.Must(t, job.Done(t.Context(), outcome(job)))
	until(ops, "p2", 2, 0)
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
	harness.Eventually(t, "one delayed, one unfit, one taken", 5*time.Minute, func() bool {
		w := b.backlog(t, ops, "p2")
		return w.Queued == 0 && w.Delayed == 1 && w.Unfit == 1 && w.Taken == 1
	})
	harness.Must(t, job.Done(t.Context(), outcome(job)))
	harness.Eventually(t, "one delayed, one unfit", 5*time.Minute, func() bool {
		w := b.backlog(t, ops, "p2")
		return w.Delayed == 1 && w.Unfit == 1 && w.Taken == 0
	})
}

// TestTheBacklogOfARemovedTrainer removes a trainer that has a request. A watcher may
// not read the request any more, and still sees that it waits, and all other queues.
func TestTheBacklogOfARemovedTrainer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	beta := b.NewTrainer(t, "beta")
	r := harness.Request("beta-1")
	r.Trainer = "beta"
	_, err := beta.Submit(t.Context(), 1, []schema.Request{r})
	harness.Must(t, err)
	b.Submit(t, harness.Request("alpha-1"))
	harness.Must(t, b.Server.RemoveTrainer("beta"))
	harness.Must(t, b.Server.Reload())
	ops := b.ops(t)
	harness.Eventually(t, "the requests of both", 5*time.Minute, func() bool {
		all, err := queue.NewBacklogs(ops).Read(t.Context())
		harness.Must(t, err)
		found := 0
		for _, w := range all.Lanes {
			switch {
			case w.Trainer == "beta" && w.Lane == "p1" && w.Queued == 1 && w.Ageless && w.Oldest.IsZero(), w.Trainer == "alpha" && w.Lane == "p2" && w.Queued == 1 && !w.Ageless && !w.Oldest.IsZero():
				found++
			}
		}
		return found == 2
	})
}

// TestTheBacklogBeforeTheFirstWorker reads a server that has no streams yet.
func TestTheBacklogBeforeTheFirstWorker(t *testing.T) {
	t.Parallel()
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: t.TempDir(), Port: testenv.FreePort(t), Trainers: []string{"alpha"}, Relaxed: true, Log: zerolog.Nop()})
	all, err := queue.NewBacklogs(testenv.DialAt(t, srv.URL(), srv.OpsCreds(), broker.InboxFor(broker.RoleOps, broker.RoleOps), zerolog.Nop())).Read(t.Context())
	if err != nil || len(all.Lanes) != 0 || all.Dead != 0 {
		t.Errorf("got %+v, %v", all, err)
	}
}

// TestATakeOverIsCounted lets a worker take over the rollout of one that is gone, and
// fails its renewals while the server is away.
func TestATakeOverIsCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	b.Take(t)
	b.Broker.Close() // without the end of its lease, as if the process had died
	metrics := telemetry.New("test")
	counts := metrics.Queue()
	other := b.NewWorker(t, "w2", func(c *queue.WorkerConfig) { c.Metrics = counts })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	job, err := other.Take(ctx)
	harness.Must(t, err)
	harness.Must(t, job.Done(t.Context(), outcome(job)))
	b.Server.Shutdown()
	harness.Eventually(t, "a failed renewal", 5*time.Minute, func() bool { return counted(t, metrics, "turngate_lease_renewals_failed_total") > 0 })
	for name, want := range map[string]float64{"turngate_takeovers_total": 1, "turngate_attempts_total": 1, "turngate_attempts_ended_total": 1, "turngate_rollouts_total": 1, "turngate_rollout_schedule_to_start_seconds": 0} {
		if got := counted(t, metrics, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// counted returns the sum of all series of a counter, or the observations of a
// histogram.
func counted(t *testing.T, m *telemetry.Metrics, name string) (sum float64) {
	t.Helper()
	all, err := m.Gather()
	harness.Must(t, err)
	for _, f := range all {
		if f.GetName() != name {
			continue
		}
		for _, x := range f.Metric {
			sum += x.Counter.GetValue() + float64(x.Histogram.GetSampleCount())
		}
	}
	return sum
}
