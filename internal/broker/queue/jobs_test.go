package queue_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func TestJobFromSubmitToResult(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hints := make(chan schema.ID, 1)
	stop, err := b.Trainer.Results.Hints(func(h schema.Hint) { hints <- h.ID })
	harness.Must(t, err)
	defer stop()
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	if j.Attempt != 1 || j.Request.ID != "alpha-1" || j.Request.Limits.AgentMS != 900_000 {
		t.Fatalf("got %+v", j)
	}
	reward := 1.0
	harness.Must(t, j.Done(t.Context(), schema.Result{ID: "alpha-1", Trainer: "alpha", Attempt: 1, Status: schema.StatusDone, Reward: &reward}))
	if id := <-hints; id != "alpha-1" {
		t.Fatalf("hint for %s", id)
	}
	r, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
	harness.Must(t, err)
	if r.Reward == nil || *r.Reward != 1 || r.Worker != "w1" {
		t.Fatalf("got %+v", r)
	}
	s, err := b.Trainer.Records.State(t.Context(), "alpha-1")
	harness.Must(t, err)
	if s.Status != schema.StatusDone || s.Attempt != r.Attempt {
		t.Fatalf("got %+v", s)
	}
}

func TestSecondResultIsDropped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	one, two := 1.0, 0.0
	harness.Must(t, j.Done(t.Context(), schema.Result{ID: "alpha-1", Attempt: 1, Status: schema.StatusDone, Reward: &one}))
	harness.Must(t, j.Done(t.Context(), schema.Result{ID: "alpha-1", Attempt: 1, Status: schema.StatusDone, Reward: &two})) // the job takes the stored result for its own write
	r, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
	harness.Must(t, err)
	if *r.Reward != 1 {
		t.Fatalf("the second result won: %+v", r)
	}
}

func TestReturnCountsTriesAndGivesThemBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := harness.Request("alpha-1")
	r.MaxAttempts = 2
	b.Submit(t, r)
	fault := schema.Faultf("sandbox", schema.CodeInternal, schema.WhoSandbox, "the box is gone")
	harness.Must(t, b.Take(t).Return(t.Context(), nil, true, 0)) // drained: not counted
	harness.Must(t, b.Take(t).Return(t.Context(), fault, false, 0))
	last := b.Take(t)
	if last.Attempt != 3 {
		t.Fatalf("attempt %d, want 3: it only grows", last.Attempt)
	}
	harness.Must(t, last.Return(t.Context(), fault, false, 0))
	res, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
	harness.Must(t, err)
	if res.Status != schema.StatusDead || res.Fault == nil || res.Fault.Message != "the box is gone" || res.Reward != nil {
		t.Fatalf("got %+v", res)
	}
}

func TestInvalidRequestGetsAResultThatNamesTheField(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	good := harness.Request("alpha-1")
	data, err := schema.Encode(&good)
	harness.Must(t, err)
	bad := bytes.Replace(data, []byte("dummy"), []byte("du my"), 1)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
	harness.Must(t, nc.Publish(subjects.Request(2, "alpha"), bad))
	ctx, cancel := context.WithCancel(t.Context())
	go b.Worker.Take(ctx) //nolint:errcheck // it ends with the test
	var res schema.Result
	harness.Eventually(t, "a result", 5*time.Minute, func() bool { res, err = b.Trainer.Records.Result(t.Context(), "alpha-1"); return err == nil })
	cancel()
	if res.Status != schema.StatusFailed || res.Fault.Who != schema.WhoUser || !strings.Contains(res.Fault.Message, "sandbox.backend") {
		t.Fatalf("got %+v", res.Fault)
	}
}

func TestUnreadableRequestsGoToTheDeadStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	foreign := harness.Request("beta-1")
	stolen, err := schema.Encode(&foreign)
	harness.Must(t, err)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.AdminCreds(), "_INBOX.test")
	dead, err := nc.SubscribeSync(subjects.DeadFilter)
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	bodies := [][]byte{[]byte("not msgpack"), stolen, {}}
	for _, body := range bodies {
		harness.Must(t, nc.Publish(subjects.Request(1, "alpha"), body))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go b.Worker.Take(ctx) //nolint:errcheck // it ends with the test
	for range bodies {
		m, err := dead.NextMsg(10 * time.Second)
		harness.Must(t, err)
		if !strings.HasPrefix(m.Subject, "dead.unreadable.") {
			t.Fatalf("got %s", m.Subject)
		}
	}
	if _, err := b.Broker.Records.Result(t.Context(), "beta-1"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("a trainer ended another's rollout: %v", err)
	}
}

func TestCancelEndsARunningJobAndAQueuedOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	ctx := j.Context()
	b.Submit(t, harness.Request("alpha-2"))
	harness.Must(t, b.Trainer.Cancel([]schema.ID{"alpha-1", "alpha-2"}, nil, "stale"))
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the running job was not cancelled")
	}
	if !errors.Is(context.Cause(ctx), queue.ErrCancelled) {
		t.Fatalf("cause %v", context.Cause(ctx))
	}
	harness.Eventually(t, "a cancelled result", 5*time.Minute, func() bool {
		r, err := b.Trainer.Records.Result(t.Context(), "alpha-2")
		return err == nil && r.Status == schema.StatusCancelled
	})
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	taking, stop := context.WithCancel(t.Context())
	go b.Worker.Take(taking) //nolint:errcheck // it ends with the test
	defer stop()
	harness.Eventually(t, "an empty queue", 5*time.Minute, func() bool { return b.queued(t) == 0 })
	if r, err := b.Trainer.Records.Result(t.Context(), "alpha-1"); err != nil || r.Status != schema.StatusCancelled {
		t.Fatalf("got %+v, %v", r, err)
	}
}
