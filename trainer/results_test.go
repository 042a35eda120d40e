package trainer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// A caller that gives up takes no result away from the next one.
func TestACallerThatGivesUpLosesNoResult(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-1")}); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 100 { // the hint arrives meanwhile
		if r, err := b.trainer.NextResult(over); err == nil {
			t.Fatalf("got %v", r.ID)
		}
		<-tick.C
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if r, err := b.trainer.NextResult(ctx); err != nil || r.ID != "alpha-1" {
		t.Fatalf("got %v, %v", r.ID, err)
	}
}

// TestACallAfterTheHintOfItsResultIsDropped, also if its rollout's state cannot be
// read: the process would keep it for a day.
func TestACallAfterTheHintOfItsResultIsDropped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	nc := b.connect(t)
	result, err := schema.Encode(&schema.Result{V: schema.Version, ID: "alpha-1", Attempt: 1, Status: schema.StatusDone})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request(subjects.Result("alpha-1"), result, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	b.trainer.Close()
	arrived := make(chan struct{}, 10)
	b.trainer = b.start(t, func(c *trainer.Config) { // its polls find later results only
		c.Check = func(*schema.Call) *schema.Fault { arrived <- struct{}{}; return nil }
	})
	hint, err := schema.Encode(&schema.Hint{V: schema.Version, ID: "alpha-1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish(subjects.TrainerResults("alpha"), hint); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-2")}); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if r, err := b.trainer.NextResult(ctx); err != nil || r.ID != "alpha-2" { // the hint of alpha-1 came before
		t.Fatalf("got %v, %v", r.ID, err)
	}
	b.ask(t.Context(), 1, 1, nil)
	select {
	case <-arrived:
	case <-ctx.Done():
		t.Fatal("no call arrives")
	}
	soon, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	p, err := b.trainer.Next(soon)
	if errors.Is(err, context.DeadlineExceeded) {
		return // it was dropped before it was taken
	}
	harness.Must(t, err)
	select {
	case <-p.Context().Done():
	case <-ctx.Done():
		t.Fatal("the call of a rollout with a result stays open")
	}
}

// A result that cannot be read keeps no other from its caller, and is read again.
func TestAResultThatCannotBeReadIsLeftForLater(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	nc := b.connect(t)
	requests := []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2")}
	if err := b.trainer.Submit(t.Context(), requests); err != nil {
		t.Fatal(err)
	}
	store := func(id schema.ID, body []byte) {
		t.Helper()
		if _, err := nc.Request(subjects.Result(id), body, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		hint, err := schema.Encode(&schema.Hint{V: schema.Version, ID: id})
		harness.Must(t, err)
		harness.Must(t, nc.Publish(subjects.TrainerResults("alpha"), hint))
	}
	done := func(id schema.ID) []byte {
		body, err := schema.Encode(&schema.Result{V: schema.Version, ID: id, Attempt: 1, Status: schema.StatusDone})
		harness.Must(t, err)
		return body
	}
	store("alpha-1", []byte("not msgpack"))
	store("alpha-2", done("alpha-2"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r, err := b.trainer.NextResult(ctx); err != nil || r.ID != "alpha-2" {
		t.Fatalf("got %v, %v", r.ID, err)
	}
	if n := b.trainer.Outstanding(); n != 1 {
		t.Fatalf("%d rollouts are outstanding, want 1", n)
	}
	store("alpha-1", done("alpha-1"))
	if r, err := b.trainer.NextResult(ctx); err != nil || r.ID != "alpha-1" {
		t.Fatalf("got %v, %v", r.ID, err)
	}
}
