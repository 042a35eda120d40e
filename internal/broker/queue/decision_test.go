package queue_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestNothingRunsWithoutACopyOfItsRequest lets the server refuse the copy of a
// request but not the state that claims it.
func TestNothingRunsWithoutACopyOfItsRequest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Records("alpha"))
	harness.Must(t, err)
	c := s.CachedInfo().Config
	copies := slices.Index(c.Subjects, subjects.RecordFilters("alpha")[0])
	all := slices.Clone(c.Subjects)
	c.Subjects = slices.Delete(c.Subjects, copies, copies+1)
	_, err = b.JetStream(t).UpdateStream(t.Context(), c)
	harness.Must(t, err)
	b.Submit(t, harness.Request("alpha-1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		if j, err := b.Worker.Take(ctx); err == nil {
			if _, err := s.GetLastMsgForSubject(t.Context(), subjects.RequestCopy("alpha-1")); err != nil {
				t.Errorf("attempt %d runs without a copy: %v", j.Attempt, err)
			}
		}
	}()
	harness.Eventually(t, "the claim", 5*time.Minute, func() bool {
		s, err := b.Trainer.Records.State(t.Context(), "alpha-1")
		return err == nil && s.Status == schema.StatusRunning
	})
	select {
	case <-taken:
		t.Error("it runs without a copy")
	case <-time.After(time.Second):
	}
	c.Subjects = all
	_, err = b.JetStream(t).UpdateStream(t.Context(), c)
	harness.Must(t, err)
	<-taken
}

// TestACopyThatIsGoneIsStoredAgain deletes the copy of a running rollout's
// request.
func TestACopyThatIsGoneIsStoredAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Records("alpha"))
	harness.Must(t, err)
	m, err := s.GetLastMsgForSubject(t.Context(), subjects.RequestCopy("alpha-1"))
	harness.Must(t, err)
	harness.Must(t, s.DeleteMsg(t.Context(), m.Sequence))
	harness.Eventually(t, "the copy", 5*time.Minute, func() bool {
		again, err := s.GetLastMsgForSubject(t.Context(), subjects.RequestCopy("alpha-1"))
		return err == nil && string(again.Data) == string(m.Data) && again.Header.Get(subjects.HeaderSubject) == m.Header.Get(subjects.HeaderSubject)
	})
	harness.Must(t, j.Done(t.Context(), outcome(j)))
}

// TestAStateWithoutRequestEnds has a state of a worker that is gone, without a
// message and without a copy.
func TestAStateWithoutRequestEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lost := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1, Tries: 1, Worker: "gone", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&lost)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	harness.Must(t, err)
	var r schema.Result
	harness.Eventually(t, "a result", 5*time.Minute, func() bool { r, err = b.Trainer.Records.Result(t.Context(), "alpha-1"); return err == nil })
	if r.Status != schema.StatusFailed || r.Fault == nil || r.Attempt != 1 {
		t.Fatalf("got %+v", r)
	}
}

// TestATryThatRanIsNotGivenBack has a job with a result that could not be stored.
// The state then names a worker that does not run the rollout, as after a claim
// with a lost answer. The difference is that the attempt has run.
func TestATryThatRanIsNotGivenBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Done(gone, outcome(j)); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	again := b.Take(t)
	if s := b.state(t, "alpha-1"); again.Attempt != 2 || s.Tries != 2 {
		t.Fatalf("attempt %d, %+v", again.Attempt, s)
	}
	harness.Must(t, again.Done(t.Context(), outcome(again)))
}

// TestACancelledRequestLeavesTheQueue cancels requests that no worker has claimed,
// with their sequences, without them, and with a foreign one.
func TestACancelledRequestLeavesTheQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var group []schema.Request
	var ids []schema.ID
	for i, id := range []schema.ID{"alpha-1", "alpha-2", "alpha-3", "alpha-4"} {
		r := harness.Request(id)
		r.Group, r.Index, r.Labels = "g", i, map[string]string{"k": string(id)}
		group, ids = append(group, r), append(ids, id)
	}
	seqs, err := b.Trainer.Submit(t.Context(), 2, group)
	harness.Must(t, err)
	other := b.NewTrainer(t, "beta")
	foreign, err := other.Submit(t.Context(), 2, []schema.Request{harness.Request("beta-1")})
	harness.Must(t, err)
	harness.Must(t, b.Trainer.Cancel(ids[:3], []uint64{seqs[0], 0, seqs[3]}, "stale")) // the third is another's
	for i, id := range ids[:3] {
		var r schema.Result
		harness.Eventually(t, "the result of "+string(id), 5*time.Minute, func() bool { r, err = b.Trainer.Records.Result(t.Context(), id); return err == nil })
		if r.Status != schema.StatusCancelled || r.Group != "g" || r.Index != i || r.Labels["k"] != string(id) || r.Task != "t" {
			t.Errorf("got %+v", r)
		}
		if q, err := b.Trainer.Records.Request(t.Context(), id); err != nil || q.ID != id || q.Labels["k"] != string(id) {
			t.Errorf("the kept request: %+v, %v", q, err)
		}
	}
	for i, want := range []bool{false, false, false, true} {
		harness.Eventually(t, "the queue", 5*time.Minute, func() bool {
			there, err := b.Trainer.Queued(t.Context(), ids[i], seqs[i])
			return err == nil && there == want
		})
	}
	harness.Must(t, b.Trainer.Cancel([]schema.ID{"beta-1"}, foreign, "not mine"))
	j := b.Take(t)
	for j.Request.ID != "alpha-4" && j.Request.ID != "beta-1" {
		t.Fatalf("took %s", j.Request.ID)
	}
}
