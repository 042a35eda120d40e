package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// finish takes the oldest request and ends it, with a reward or without one.
func (b *bench) finish(t *testing.T, reward *float64) schema.ID {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	j, err := b.worker.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Done(ctx, schema.Result{ID: j.Request.ID, Attempt: j.Attempt, Status: schema.StatusDone, Group: j.Request.Group, Reward: reward, Separation: schema.SeparationSandbox}); err != nil {
		t.Fatal(err)
	}
	return j.Request.ID
}

func (b *bench) submitGroup(t *testing.T, name string, n int) []schema.ID {
	t.Helper()
	var all []schema.Request
	var ids []schema.ID
	for i := range n {
		r := harness.Request(schema.ID(fmt.Sprintf("alpha-%s-%d", name, i)))
		r.Group, r.Index = name, i
		all, ids = append(all, r), append(ids, r.ID)
	}
	if err := b.trainer.Submit(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	return ids
}

// results runs ResultsOf in the background.
func (b *bench) results(t *testing.T, w trainer.Wanted) (<-chan schema.Result, <-chan error) {
	got, end := make(chan schema.Result, 16), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { end <- b.trainer.ResultsOf(ctx, w, func(r schema.Result) { got <- r }) }()
	t.Cleanup(cancel)
	return got, end
}

func within[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestAGroupWithEnoughResultsIsCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ids := b.submitGroup(t, "g", 5)
	b.submitGroup(t, "h", 1)
	one := 1.0
	got, end := b.results(t, trainer.Wanted{Group: "g", Enough: 2})
	other, otherEnd := b.results(t, trainer.Wanted{Group: "h"})
	for i, reward := range []*float64{&one, nil, &one} { // without a reward, a result is not usable
		if id := b.finish(t, reward); id != ids[i] {
			t.Fatalf("%s was taken, not %s", id, ids[i])
		}
		if r := within(t, got); r.ID != ids[i] || r.Status != schema.StatusDone {
			t.Fatalf("got %+v", r)
		}
	}
	left := []schema.ID{within(t, got).ID, within(t, got).ID}
	slices.Sort(left)
	if !slices.Equal(left, ids[3:]) {
		t.Fatalf("got %v", left)
	}
	if err := within(t, end); err != nil {
		t.Fatal(err)
	}
	if b.trainer.Outstanding() != 1 || len(other) > 0 {
		t.Fatalf("%d rollouts are outstanding; group h has %d results", b.trainer.Outstanding(), len(other))
	}
	b.trainer.Close()
	if err := within(t, otherEnd); !errors.Is(err, trainer.ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

func TestLoopsOverResultsEndTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.submitGroup(t, "g", 2)
	all, allEnd := b.results(t, trainer.Wanted{})
	again, againEnd := b.results(t, trainer.Wanted{})
	group, groupEnd := b.results(t, trainer.Wanted{Group: "g"})
	one := 1.0
	want := []schema.ID{b.finish(t, &one), b.finish(t, nil)}
	for _, end := range []<-chan error{allEnd, againEnd, groupEnd} {
		if err := within(t, end); err != nil {
			t.Fatal(err)
		}
	}
	var ids []schema.ID
	for _, c := range []<-chan schema.Result{all, again, group} {
		for range len(c) {
			ids = append(ids, (<-c).ID)
		}
	}
	if slices.Sort(ids); !slices.Equal(ids, want) {
		t.Fatalf("got %v, want %v", ids, want)
	}
	if err := b.trainer.ResultsOf(t.Context(), trainer.Wanted{Group: "none"}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestRolloutsOfOldVersionsAreCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	nc := b.connect(t)
	asked, err := nc.SubscribeSync(subjects.TrainerCancel("alpha"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ids := b.submitGroup(t, "g", 3)
	answered := func(id schema.ID, attempt, n int, version string) {
		t.Helper()
		c := schema.Call{V: 1, Key: schema.Key{Rollout: id, Attempt: attempt, Call: n}.String(), Tag: schema.TagAgent, Dialect: "chat",
			Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"go"}`)}}
		done := make(chan error, 1)
		go func() {
			err := b.calls.Caller(harness.Request(id).WithDefaults(), nil).Complete(t.Context(), c, func(schema.Frame) error { return nil })
			done <- err
		}()
		reply, err := trainer.NewReply(trainer.Message{Content: "yes"}, trainer.Sample{PromptIDs: []int32{1}, CompletionIDs: []int32{2}, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		if err := next(t, b.trainer).Reply(reply); err != nil {
			t.Fatal(err)
		}
		if err := within(t, done); err != nil {
			t.Fatal(err)
		}
	}
	over := map[schema.ID]bool{}
	cancelled := func(version int64, want schema.ID) {
		t.Helper()
		if err := b.trainer.CancelOlder(version, "stale"); err != nil {
			t.Fatal(err)
		}
		var c schema.Cancel
		for len(c.IDs) == 0 || over[c.IDs[0]] { // cancels are repeated
			m, err := asked.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Decode(m.Data, &c); err != nil {
				t.Fatal(err)
			}
		}
		if len(c.IDs) != 1 || c.IDs[0] != want {
			t.Fatalf("cancelled %v, want %v", c.IDs, want)
		}
		over[want] = true
		r, err := b.trainer.NextResult(t.Context())
		if err != nil || r.ID != want || r.Status != schema.StatusCancelled {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
	answered(ids[0], 1, 1, "step-3")
	answered(ids[0], 2, 1, "step-9") // the attempt with version 3 is over
	answered(ids[1], 1, 1, "step-3")
	answered(ids[1], 1, 2, "step-9")
	answered(ids[2], 1, 1, "latest") // without a number it is never old
	cancelled(9, ids[1])
	cancelled(10, ids[0])
	if b.trainer.Outstanding() != 1 {
		t.Fatalf("%d rollouts are outstanding", b.trainer.Outstanding())
	}
}
