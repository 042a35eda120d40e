package queue_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// Idle slots that wait on all lanes lose no message: a message for a wait that
// has ended returns to the queue at once, not after the ack wait.
func TestNoRequestIsStrandedBetweenIdleSlots(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const rollouts = 200
	ctx, cancel := context.WithCancel(t.Context())
	var slots sync.WaitGroup
	took := make(chan schema.ID, rollouts)
	for range 4 {
		slots.Go(func() {
			for {
				j, err := b.Worker.Take(ctx)
				if err != nil {
					return
				}
				took <- j.Request.ID
				if err := j.Done(t.Context(), outcome(j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range rollouts {
		_, err := b.Trainer.Submit(t.Context(), i%4, []schema.Request{harness.Request(schema.ID(fmt.Sprintf("alpha-%d", i)))})
		harness.Must(t, err)
		select {
		case <-took:
		case <-time.After(2500 * time.Millisecond): // the ack wait is 3 s here
			t.Errorf("request %d was stranded", i)
			<-took
		}
	}
	cancel()
	slots.Wait()
}

func TestUrgentLanesComeFirstAndTheLowestIsNotStarved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for lane, n := range map[int]int{0: 60, 3: 4} {
		var group []schema.Request
		for i := range n {
			r := harness.Request(schema.ID(fmt.Sprintf("alpha-p%d-%d", lane, i)))
			r.Group = fmt.Sprint(lane)
			group = append(group, r)
		}
		_, err := b.Trainer.Submit(t.Context(), lane, group)
		harness.Must(t, err)
	}
	urgent, low := 0, 0
	for range 40 {
		j := b.Take(t)
		if j.Request.Group == "3" {
			low++
		} else {
			urgent++
		}
		harness.Must(t, j.Done(t.Context(), outcome(j)))
	}
	if urgent < 34 || low < 1 {
		t.Fatalf("of 40 jobs %d were urgent and %d of the lowest lane", urgent, low)
	}
}

func TestADelayedRequestWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := harness.Request("alpha-1")
	r.DelayMS = 700
	start := time.Now()
	b.Submit(t, r)
	j := b.Take(t)
	if waited := time.Since(start); waited < 700*time.Millisecond || j.Attempt != 1 {
		t.Fatalf("taken after %s", waited)
	}
}

func TestAGroupIsQueuedAllOrNone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxQueue: 5}))
	group := func(name string, n int) []schema.Request {
		var out []schema.Request
		for i := range n {
			r := harness.Request(schema.ID(fmt.Sprintf("alpha-%s-%d", name, i)))
			r.Group = name
			out = append(out, r)
		}
		return out
	}
	seqs, err := b.Trainer.Submit(t.Context(), 1, group("a", 4))
	harness.Must(t, err)
	if len(seqs) != 4 || seqs[3] != seqs[0]+3 {
		t.Fatalf("sequences %v", seqs)
	}
	// The answer was lost. A repeated submit adds no second message.
	again, err := b.Trainer.Submit(t.Context(), 1, group("a", 4))
	harness.Must(t, err)
	if again[0] != seqs[0] || again[3] != seqs[3] {
		t.Fatalf("sequences %v, then %v", seqs, again)
	}
	if _, err := b.Trainer.Submit(t.Context(), 1, group("b", 4)); !isFull(err) {
		t.Fatalf("got %v", err)
	}
	if n := b.queued(t); n != 4 {
		t.Fatalf("%d requests are queued", n)
	}
}

// fillLane puts n requests of a trainer on a lane.
func fillLane(t *testing.T, side *queue.Trainer, tid string, lane, n int) {
	t.Helper()
	for at := 0; at < n; at += broker.MaxBatch {
		var group []schema.Request
		for i := at; i < min(at+broker.MaxBatch, n); i++ {
			group = append(group, harness.Request(schema.ID(fmt.Sprintf("%s-%d", tid, i))))
		}
		_, err := side.Submit(t.Context(), lane, group)
		harness.Must(t, err)
	}
}

func TestATrainersManyRequestsDelayNoOtherTrainer(t *testing.T) {
	t.Parallel()
	for lane := range 4 {
		t.Run(fmt.Sprintf("p%d", lane), func(t *testing.T) {
			b := newBench(t)
			fillLane(t, b.Trainer, "alpha", lane, 2000)
			harness.Must(t, b.Take(t).Done(t.Context(), schema.Result{ID: "alpha-0", Trainer: "alpha", Attempt: 1, Status: schema.StatusDone}))
			fillLane(t, b.NewTrainer(t, "beta"), "beta", lane, 10)
			var order []string
			harness.Eventually(t, "all of beta's", 5*time.Minute, func() bool {
				j := b.Take(t)
				order = append(order, j.Request.Trainer)
				harness.Must(t, j.Done(t.Context(), outcome(j)))
				return len(slices.DeleteFunc(slices.Clone(order), func(s string) bool { return s == "alpha" })) == 10
			})
			first := slices.Index(order, "beta") // until then the worker did not know of beta's queue
			if got := len(order) - first; got > 21 {
				t.Fatalf("beta's ten came within %d: %q", got, order[first:])
			}
		})
	}
}

func TestTrainersComeInTurnByTheirWeights(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	beta := b.NewTrainer(t, "beta")
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "beta", broker.TrainerSettings{Weight: 3}))
	fillLane(t, b.Trainer, "alpha", 1, 300)
	fillLane(t, beta, "beta", 1, 300)
	count := map[string]int{}
	harness.Eventually(t, "both in turn", 5*time.Minute, func() bool {
		j := b.Take(t)
		harness.Must(t, j.Done(t.Context(), outcome(j)))
		if count[j.Request.Trainer]++; count["alpha"] == 1 && count["beta"] == 0 || count["beta"] == 1 && count["alpha"] == 0 {
			return false
		}
		return count["alpha"]+count["beta"] == 80
	})
	if n := count["beta"]; n < 55 || n > 65 {
		t.Fatalf("of 80 requests %d are beta's, whose weight is 3", n)
	}
}
