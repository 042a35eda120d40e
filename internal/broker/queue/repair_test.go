package queue_test

import (
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

// TestARecordThatCannotBeReadIsRepaired puts invalid records into the stream.
// Each ends its own rollout, once, and blocks no slot.
func TestARecordThatCannotBeReadIsRepaired(t *testing.T) {
	t.Parallel()
	foreign, err := schema.Encode(&schema.State{V: 1, ID: "alpha-9", Trainer: "alpha", Status: schema.StatusDone, Attempt: 1})
	harness.Must(t, err)
	for name, forge := range map[string]struct {
		subject string
		data    []byte
	}{
		"no message":                    {subjects.State("alpha-1"), []byte("not msgpack")},
		"another's state":               {subjects.State("alpha-1"), foreign},
		"an empty state":                {subjects.State("alpha-1"), nil},
		"an illegible result":           {subjects.Result("alpha-1"), []byte("not msgpack")},
		"a message of the largest size": {subjects.State("alpha-1"), make([]byte, 8<<20-len(subjects.State("alpha-1")))},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Leave()
			w := b.NewWorker(t, "w2", func(c *queue.WorkerConfig) { c.Timing.Tidy = time.Hour }) // a janitor that is faster does not know the request
			_, err := b.JetStream(t).Publish(t.Context(), forge.subject, forge.data)
			harness.Must(t, err)
			if forge.subject == subjects.Result("alpha-1") { // a worker of a former attempt looks for its result
				queued, err := schema.Encode(&schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusQueued, Attempt: 1, Tries: 1})
				harness.Must(t, err)
				_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), queued)
				harness.Must(t, err)
			}
			q := harness.Request("alpha-1")
			q.Group, q.Index, q.Labels = "g", 3, map[string]string{"a": "b"}
			b.Submit(t, q)
			b.Submit(t, harness.Request("alpha-2"))
			if j := takeFrom(t, w); j.Request.ID != "alpha-2" {
				t.Fatalf("took %s", j.Request.ID)
			}
			r, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
			harness.Must(t, err)
			if r.Status != schema.StatusFailed || r.Fault == nil || r.Fault.Code != schema.CodeUnreadable || r.Group != "g" || r.Index != 3 || r.Labels["a"] != "b" {
				t.Errorf("got %+v, fault %v", r, r.Fault)
			}
			if s := b.state(t, "alpha-1"); s.Status != schema.StatusFailed {
				t.Errorf("the state is %+v", s)
			}
			from := b.Dial(t, testenv.AdmitWorker(t, b.Server, "w9"), broker.InboxFor("worker", "w9")).Dead
			dead, err := from.List(t.Context(), 10)
			harness.Must(t, err)
			if len(dead) != 1 || dead[0].Data != nil {
				t.Fatalf("%d dead letters, or one with its body", len(dead))
			}
			one, err := from.Get(t.Context(), dead[0].Seq)
			harness.Must(t, err)
			if one.Subject != forge.subject || string(one.Data) != string(forge.data[:min(len(forge.data), 256<<10)]) {
				t.Errorf("another dead letter: %+v", one)
			}
		})
	}
}

// TestAnUnreadableStateBesideAResult checks that a stored result counts if only the
// state cannot be read, and that one that cannot be read either is replaced.
func TestAnUnreadableStateBesideAResult(t *testing.T) {
	one := 1.0
	good, err := schema.Encode(&schema.Result{V: 1, ID: "alpha-1", Trainer: "alpha", Attempt: 2, Status: schema.StatusDone, Reward: &one})
	harness.Must(t, err)
	for name, tt := range map[string]struct {
		result []byte
		want   schema.Status
		by     func(t *testing.T, b *bench)
	}{
		"by a request":            {good, schema.StatusDone, func(t *testing.T, b *bench) { b.Submit(t, harness.Request("alpha-1")) }},
		"by a cancel":             {good, schema.StatusDone, func(t *testing.T, b *bench) { harness.Must(t, b.Trainer.Cancel([]schema.ID{"alpha-1"}, nil, "stale")) }},
		"by the janitor":          {good, schema.StatusDone, func(*testing.T, *bench) {}},
		"neither can be read":     {[]byte("not msgpack"), schema.StatusFailed, func(t *testing.T, b *bench) { b.Submit(t, harness.Request("alpha-1")) }},
		"neither, by the janitor": {[]byte("not msgpack"), schema.StatusFailed, func(*testing.T, *bench) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			_, err := b.JetStream(t).Publish(t.Context(), subjects.Result("alpha-1"), tt.result)
			harness.Must(t, err)
			_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), []byte("not msgpack"))
			harness.Must(t, err)
			tt.by(t, b)
			b.Submit(t, harness.Request("alpha-2"))
			if j := b.Take(t); j.Request.ID != "alpha-2" {
				t.Fatalf("took %s", j.Request.ID)
			}
			harness.Eventually(t, "a state that can be read", 5*time.Minute, func() bool {
				s, err := b.Trainer.Records.State(t.Context(), "alpha-1")
				return err == nil && s.Status == tt.want
			})
			r, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
			harness.Must(t, err)
			if r.Status != tt.want || (r.Reward == nil) == (tt.want == schema.StatusDone) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestOneBadRecordEndsNoRound checks that the janitor, after an unreadable state,
// still requeues a rollout that was lost with its queue.
func TestOneBadRecordEndsNoRound(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.JetStream(t).Publish(t.Context(), subjects.State("alpha-0"), []byte("not msgpack"))
	harness.Must(t, err)
	lost := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1, Tries: 1, Worker: "w1", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&lost)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	harness.Must(t, err)
	harness.Eventually(t, "the state to be given back", 5*time.Minute, func() bool { return b.state(t, "alpha-1").Status == schema.StatusQueued })
	harness.Eventually(t, "the bad record's result", 5*time.Minute, func() bool {
		r, err := b.Trainer.Records.Result(t.Context(), "alpha-0")
		return err == nil && r.Status == schema.StatusFailed && r.Fault.Code == schema.CodeUnreadable
	})
}

// TestAResultThatIsTooLargeIsTrimmed commits results beyond the server's
// payload limit.
func TestAResultThatIsTooLargeIsTrimmed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	one := 1.0
	large := schema.Result{ID: "alpha-1", Attempt: 1, Status: schema.StatusDone, Reward: &one, Committed: []schema.Committed{{Call: 1, Gen: "g"}}}
	for range 600 {
		large.Phases = append(large.Phases, schema.Phase{Name: "setup", Output: strings.Repeat("x", 32<<10)})
	}
	b.Submit(t, harness.Request("alpha-1"))
	harness.Must(t, b.Take(t).Done(ctx, large))
	r, err := b.Trainer.Records.Result(ctx, "alpha-1")
	harness.Must(t, err)
	if r.Status != schema.StatusDone || r.Reward == nil || *r.Reward != 1 || len(r.Phases) != 600 || len(r.Committed) != 1 || len(r.Notes) == 0 {
		t.Errorf("got status %s, reward %v, %d phases, notes %q", r.Status, r.Reward, len(r.Phases), r.Notes)
	}
	tooMuch := schema.Result{ID: "alpha-2", Attempt: 1, Status: schema.StatusDone, Reward: &one}
	for range 200_000 {
		tooMuch.Committed = append(tooMuch.Committed, schema.Committed{Call: 1, Gen: "0123456789abcdef"})
	}
	b.Submit(t, harness.Request("alpha-2"))
	harness.Must(t, b.Take(t).Done(ctx, tooMuch))
	r, err = b.Trainer.Records.Result(ctx, "alpha-2")
	harness.Must(t, err)
	if r.Status != schema.StatusFailed || r.Reward != nil || r.Fault == nil || r.Fault.Code != schema.CodeTooLarge {
		t.Errorf("got %s, %v, %v", r.Status, r.Reward, r.Fault)
	}
	if _, err := b.Trainer.Records.Result(ctx, "alpha-3"); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("a rollout that is not there: %v", err)
	}
}

// TestTheReasonOfACancelNeedsRoom cancels a rollout with a result that is too large
// only with the reason.
func TestTheReasonOfACancelNeedsRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	r := queue.Cancelled(outcome(j))
	r.V, r.Worker = schema.Version, "w1"
	for range 127 {
		r.Phases = append(r.Phases, schema.Phase{Name: "setup", Output: strings.Repeat("x", 64<<10)})
	}
	r.Phases = append(r.Phases, schema.Phase{Name: "setup", Output: strings.Repeat("x", 1<<10)})
	data, err := schema.Encode(&r)
	harness.Must(t, err)
	r.Phases[127].Output += strings.Repeat("x", 8<<20-4096-100-len(data)) // 100 bytes are left
	reason := strings.Repeat("r", 1024)
	harness.Must(t, b.Trainer.Cancel([]schema.ID{"alpha-1"}, nil, reason))
	<-j.Context().Done()
	harness.Must(t, j.Done(t.Context(), r))
	got, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
	harness.Must(t, err)
	if got.Status != schema.StatusCancelled || !strings.HasSuffix(got.Fault.Message, reason) || len(got.Phases) != 128 || len(got.Notes) != 1 {
		t.Errorf("got %s, %d phases, notes %q", got.Status, len(got.Phases), got.Notes)
	}
}
