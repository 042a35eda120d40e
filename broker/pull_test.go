package broker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// Idle slots that wait on every lane lose no message between them: whatever
// is sent to a wait that is over comes back at once, not after the ack wait.
func TestNoRequestIsStrandedBetweenIdleSlots(t *testing.T) {
	b := newBench(t)
	const rollouts = 200
	ctx, cancel := context.WithCancel(t.Context())
	var slots sync.WaitGroup
	took := make(chan schema.ID, rollouts)
	for range 4 {
		slots.Go(func() {
			for {
				j, err := b.worker.Take(ctx)
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
		_, err := b.trainer.Submit(t.Context(), i%4, []schema.Request{request(schema.ID(fmt.Sprintf("alpha-%d", i)))})
		must(t, err)
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
	b := newBench(t)
	for lane, n := range map[int]int{0: 60, 3: 4} {
		var group []schema.Request
		for i := range n {
			r := request(schema.ID(fmt.Sprintf("alpha-p%d-%d", lane, i)))
			r.Group = fmt.Sprint(lane)
			group = append(group, r)
		}
		_, err := b.trainer.Submit(t.Context(), lane, group)
		must(t, err)
	}
	urgent, low := 0, 0
	for range 40 {
		j := b.take(t)
		if j.Request.Group == "3" {
			low++
		} else {
			urgent++
		}
		must(t, j.Done(t.Context(), outcome(j)))
	}
	if urgent < 34 || low < 1 {
		t.Fatalf("of 40 jobs %d were urgent and %d of the lowest lane", urgent, low)
	}
}

func TestADelayedRequestWaits(t *testing.T) {
	b := newBench(t)
	r := request("alpha-1")
	r.DelayMS = 700
	start := time.Now()
	b.submit(t, r)
	j := b.take(t)
	if waited := time.Since(start); waited < 700*time.Millisecond || j.Attempt != 1 {
		t.Fatalf("taken after %s", waited)
	}
}

func TestAGroupIsQueuedAllOrNone(t *testing.T) {
	b := newBench(t)
	must(t, b.worker.Setup(t.Context(), broker.StreamsConfig{Timing: quick(), MaxQueue: 5}))
	group := func(name string, n int) []schema.Request {
		var out []schema.Request
		for i := range n {
			r := request(schema.ID(fmt.Sprintf("alpha-%s-%d", name, i)))
			r.Group = name
			out = append(out, r)
		}
		return out
	}
	seqs, err := b.trainer.Submit(t.Context(), 1, group("a", 4))
	must(t, err)
	if len(seqs) != 4 || seqs[3] != seqs[0]+3 {
		t.Fatalf("sequences %v", seqs)
	}
	// The answer was lost: the same again is no second message.
	again, err := b.trainer.Submit(t.Context(), 1, group("a", 4))
	must(t, err)
	if again[0] != seqs[0] || again[3] != seqs[3] {
		t.Fatalf("sequences %v, then %v", seqs, again)
	}
	if _, err := b.trainer.Submit(t.Context(), 1, group("b", 4)); !isFull(err) {
		t.Fatalf("got %v", err)
	}
	if n := b.queued(t); n != 4 {
		t.Fatalf("%d requests are queued", n)
	}
}
