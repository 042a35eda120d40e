package broker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func TestSetupIsIdempotentAndNoStreamsOverlap(t *testing.T) {
	b := newBench(t) // a real server refuses streams whose subjects overlap
	must(t, b.worker.Setup(t.Context(), broker.StreamsConfig{Timing: quick()}))
}

func TestJobFromSubmitToResult(t *testing.T) {
	b := newBench(t)
	hints := make(chan schema.ID, 1)
	stop, err := b.trainer.Hints(func(id schema.ID) { hints <- id })
	must(t, err)
	defer stop()
	b.submit(t, request("alpha-1"))
	j := b.take(t)
	if j.Attempt != 1 || j.Request.ID != "alpha-1" || j.Request.Limits.AgentMS != 900_000 {
		t.Fatalf("got %+v", j)
	}
	reward := 1.0
	must(t, j.Done(t.Context(), schema.Result{ID: "alpha-1", Trainer: "alpha", Attempt: 1, Status: schema.StatusDone, Reward: &reward}))
	if id := <-hints; id != "alpha-1" {
		t.Fatalf("hint for %s", id)
	}
	r, err := b.trainer.Result(t.Context(), "alpha-1")
	must(t, err)
	if r.Reward == nil || *r.Reward != 1 || r.Worker != "w1" {
		t.Fatalf("got %+v", r)
	}
	s, err := b.trainer.State(t.Context(), "alpha-1")
	must(t, err)
	if s.Status != schema.StatusDone || s.Attempt != r.Attempt {
		t.Fatalf("got %+v", s)
	}
}

func TestSecondResultIsDropped(t *testing.T) {
	b := newBench(t)
	b.submit(t, request("alpha-1"))
	j := b.take(t)
	one, two := 1.0, 0.0
	must(t, j.Done(t.Context(), schema.Result{ID: "alpha-1", Attempt: 1, Status: schema.StatusDone, Reward: &one}))
	must(t, j.Done(t.Context(), schema.Result{ID: "alpha-1", Attempt: 1, Status: schema.StatusDone, Reward: &two})) // taken for its own write
	r, err := b.trainer.Result(t.Context(), "alpha-1")
	must(t, err)
	if *r.Reward != 1 {
		t.Fatalf("the second result won: %+v", r)
	}
}

func TestReturnCountsTriesAndGivesThemBack(t *testing.T) {
	b := newBench(t)
	r := request("alpha-1")
	r.MaxAttempts = 2
	b.submit(t, r)
	fault := schema.Faultf("sandbox", schema.CodeInternal, schema.WhoSandbox, "the box is gone")
	must(t, b.take(t).Return(t.Context(), nil, true, 0)) // drained: not counted
	must(t, b.take(t).Return(t.Context(), fault, false, 0))
	last := b.take(t)
	if last.Attempt != 3 {
		t.Fatalf("attempt %d, want 3: it only grows", last.Attempt)
	}
	must(t, last.Return(t.Context(), fault, false, 0))
	res, err := b.trainer.Result(t.Context(), "alpha-1")
	must(t, err)
	if res.Status != schema.StatusDead || res.Fault == nil || res.Fault.Message != "the box is gone" || res.Reward != nil {
		t.Fatalf("got %+v", res)
	}
}

func TestInvalidRequestGetsAResultThatNamesTheField(t *testing.T) {
	b := newBench(t)
	good := request("alpha-1")
	data, err := schema.Encode(&good)
	must(t, err)
	bad := bytes.Replace(data, []byte("dummy"), []byte("du my"), 1)
	nc := b.raw(t, b.server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
	must(t, nc.Publish(subjects.Request(2, "alpha"), bad))
	ctx, cancel := context.WithCancel(t.Context())
	go b.worker.Take(ctx) //nolint:errcheck // it ends with the test
	var res schema.Result
	eventually(t, "a result", func() bool { res, err = b.trainer.Result(t.Context(), "alpha-1"); return err == nil })
	cancel()
	if res.Status != schema.StatusFailed || res.Fault.Who != schema.WhoUser || !strings.Contains(res.Fault.Message, "sandbox.backend") {
		t.Fatalf("got %+v", res.Fault)
	}
}

func TestUnreadableRequestsGoToTheDeadStream(t *testing.T) {
	b := newBench(t)
	foreign := request("beta-1")
	stolen, err := schema.Encode(&foreign)
	must(t, err)
	nc := b.raw(t, b.server.WorkerCreds(), "_INBOX.test")
	dead, err := nc.SubscribeSync(subjects.DeadFilter)
	must(t, err)
	must(t, nc.Flush())
	bodies := [][]byte{[]byte("not msgpack"), stolen, {}}
	for _, body := range bodies {
		must(t, nc.Publish(subjects.Request(1, "alpha"), body))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go b.worker.Take(ctx) //nolint:errcheck // it ends with the test
	for range bodies {
		m, err := dead.NextMsg(10 * time.Second)
		must(t, err)
		if !strings.HasPrefix(m.Subject, "dead.unreadable.") {
			t.Fatalf("got %s", m.Subject)
		}
	}
	if _, err := b.trainer.Result(t.Context(), "beta-1"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("a trainer ended another's rollout: %v", err)
	}
}

func TestCancelEndsARunningJobAndAQueuedOne(t *testing.T) {
	b := newBench(t)
	b.submit(t, request("alpha-1"))
	j := b.take(t)
	ctx := j.Context()
	b.submit(t, request("alpha-2"))
	must(t, b.trainer.Cancel([]schema.ID{"alpha-1", "alpha-2"}, "stale"))
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the running job was not cancelled")
	}
	if !errors.Is(context.Cause(ctx), broker.ErrCancelled) {
		t.Fatalf("cause %v", context.Cause(ctx))
	}
	eventually(t, "a cancelled result", func() bool {
		r, err := b.trainer.Result(t.Context(), "alpha-2")
		return err == nil && r.Status == schema.StatusCancelled
	})
	must(t, j.Done(t.Context(), outcome(j)))
	taking, stop := context.WithCancel(t.Context())
	go b.worker.Take(taking) //nolint:errcheck // it ends with the test
	defer stop()
	eventually(t, "an empty queue", func() bool { return b.queued(t) == 0 })
	if r, err := b.trainer.Result(t.Context(), "alpha-1"); err != nil || r.Status != schema.StatusCancelled {
		t.Fatalf("got %+v, %v", r, err)
	}
}

func TestATrainerMayActOnlyAsItself(t *testing.T) {
	b := newBench(t)
	nc := b.raw(t, b.server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
	for _, subject := range []string{
		subjects.Request(2, "beta"), subjects.Result("alpha-1"), subjects.State("alpha-1"), subjects.TrainerCancel("beta"),
		"_INBOX.gate.beta.w1.i1.00", subjects.Event("alpha-1", schema.EventLog), "$JS.API.STREAM.DELETE.ROLLOUT", "$JS.API.CONSUMER.CREATE.OBJ_tasks.x",
	} {
		if !denied(t, nc, func() error { return nc.Publish(subject, nil) }) {
			t.Errorf("alpha may publish %s", subject)
		}
	}
	for _, subject := range []string{subjects.CallsOf("beta", ""), "rollout.>", "_INBOX.>", subjects.TrainerResults("beta")} {
		if !denied(t, nc, func() error { _, err := nc.SubscribeSync(subject); return err }) {
			t.Errorf("alpha may hear %s", subject)
		}
	}
	if _, err := nats.Connect(b.server.URL()); err == nil {
		t.Error("the server is open without authentication")
	}
}

func denied(t *testing.T, nc *nats.Conn, act func() error) bool {
	t.Helper()
	got := make(chan error, 8)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { got <- err })
	if err := act(); err != nil {
		t.Fatal(err)
	}
	must(t, nc.Flush())
	select {
	case err := <-got:
		return strings.Contains(strings.ToLower(err.Error()), "permissions violation")
	case <-time.After(time.Second):
		return false
	}
}

func (b *bench) raw(t testing.TB, seed, inbox string) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(seed)
	must(t, err)
	nc, err := nats.Connect(b.server.URL(), key, nats.CustomInboxPrefix(inbox))
	must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func TestBundlesAndArtifacts(t *testing.T) {
	b := newBench(t)
	data := bytes.Repeat([]byte("bundle "), 400_000) // several chunks
	sha, err := b.trainer.PutBundle(t.Context(), data)
	must(t, err)
	again, err := b.trainer.PutBundle(t.Context(), data)
	must(t, err)
	got, err := b.worker.Bundle(t.Context(), sha)
	must(t, err)
	if again != sha || !bytes.Equal(got, data) {
		t.Fatal("the bundle changed on the way")
	}
	a, err := b.worker.KeepArtifact(t.Context(), "agent.log", []byte("log"))
	must(t, err)
	if got, err := b.trainer.Artifact(t.Context(), a.SHA256); err != nil || string(got) != "log" {
		t.Fatalf("got %q, %v", got, err)
	}
	store, err := b.js(t).ObjectStore(t.Context(), subjects.BucketTasks)
	must(t, err)
	if theirs, err := store.GetBytes(t.Context(), sha); err != nil || !bytes.Equal(theirs, data) { // which checks size and digest
		t.Fatalf("the usual client cannot read it: %v", err)
	}
	if _, err := b.worker.Bundle(t.Context(), strings.Repeat("0", 64)); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}

// The server deletes an artifact after the rollouts that have it, and not
// before: how long each message of it has is in its header.
func TestArtifactsAreKeptAsLongAsTheirRollouts(t *testing.T) {
	b := newBench(t)
	stream, err := b.js(t).Stream(t.Context(), subjects.ObjectStream(subjects.BucketArtifact))
	must(t, err)
	// lives are how long each message from a sequence on is kept; "": for ever.
	lives := func(from uint64) (found []string) {
		info, err := stream.Info(t.Context())
		must(t, err)
		for seq := from; seq <= info.State.LastSeq; seq++ {
			m, err := stream.GetMsg(t.Context(), seq)
			must(t, err)
			found = append(found, m.Header.Get("Nats-TTL"))
		}
		return found
	}
	next := func() uint64 {
		info, err := stream.Info(t.Context())
		must(t, err)
		return info.State.LastSeq + 1
	}
	side := func(keep time.Duration) *broker.WorkerSide {
		return b.workerSide(t, fmt.Sprintf("w%d", keep/time.Hour), func(c *broker.WorkerConfig) { c.Retention = keep })
	}
	day, week, always := side(24*time.Hour), side(7*24*time.Hour), side(0)
	for _, tt := range []struct {
		what string
		side *broker.WorkerSide
		want []string // of the messages that are written
	}{
		{"a piece and its name", day, []string{"49h0m0s", "49h0m0s"}},
		{"it is there for long enough", day, nil},
		{"it is not there for long enough", week, []string{"337h0m0s", "337h0m0s"}},
		{"it is there for longer", day, nil},
		{"for ever", always, []string{"", ""}},
		{"it is there for ever", week, nil},
	} {
		from := next()
		a, err := tt.side.KeepArtifact(t.Context(), "log", []byte("the same"))
		must(t, err)
		if got := lives(from); !slices.Equal(got, tt.want) {
			t.Errorf("%s: messages were written that are kept for %q, want %q", tt.what, got, tt.want)
		}
		if got, err := b.trainer.Artifact(t.Context(), a.SHA256); err != nil || string(got) != "the same" {
			t.Errorf("%s: got %q, %v", tt.what, got, err)
		}
	}
}

func TestABundleThatIsNotWhatItsNameSays(t *testing.T) {
	b := newBench(t)
	js, err := jetstream.New(b.raw(t, b.server.WorkerCreds(), "_INBOX.test"))
	must(t, err)
	store, err := js.ObjectStore(t.Context(), subjects.BucketTasks)
	must(t, err)
	sha := strings.Repeat("a", 64)
	_, err = store.PutString(t.Context(), sha, "something else")
	must(t, err)
	if _, err := b.worker.Bundle(t.Context(), sha); !errors.Is(err, broker.ErrDigest) {
		t.Fatalf("got %v", err)
	}
}

func TestCredentialsAreKeptFromOthers(t *testing.T) {
	b := newBench(t)
	for _, f := range []string{b.server.WorkerCreds(), b.server.OpsCreds(), b.server.TrainerCreds("alpha")} {
		info, err := os.Stat(f)
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", f, info.Mode())
		}
	}
	dir, err := os.Stat(filepath.Dir(b.server.OpsCreds()))
	must(t, err)
	if dir.Mode().Perm() != 0o700 {
		t.Errorf("the credentials' folder has mode %v", dir.Mode())
	}
}

func TestLiveDeltasReachWhoWatchesNow(t *testing.T) {
	b := newBench(t)
	nc := b.raw(t, b.server.OpsCreds(), broker.InboxFor("ops", "ops"))
	sub, err := nc.SubscribeSync("rollout.*.live.*")
	must(t, err)
	must(t, nc.Flush())
	b.worker.Live("alpha-1", 2, 7, &schema.Delta{V: 1, Delta: []byte(`{"content":"a"}`)})
	m, err := sub.NextMsg(10 * time.Second)
	must(t, err)
	var d schema.Delta
	must(t, schema.Decode(m.Data, &d))
	if m.Subject != subjects.Live("alpha-1", 2) || m.Header.Get(subjects.HeaderCall) != "7" || string(d.Delta) != `{"content":"a"}` {
		t.Fatalf("got %s %v %s", m.Subject, m.Header, d.Delta)
	}
}

func TestTapSeesEventsInOrder(t *testing.T) {
	b := newBench(t)
	for i := range 3 {
		b.worker.Emit(&schema.Event{Type: schema.EventPhase, Rollout: "alpha-1", Attempt: 1, Index: int64(i + 1), Phase: &schema.PhaseEvent{Name: "agent"}})
	}
	ops := b.dial(t, b.server.OpsCreds(), broker.InboxFor("ops", "ops"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var seen []int64
	tap, err := ops.OpenTap(ctx, "alpha-1")
	must(t, err)
	must(t, tap.Run(ctx, func(e schema.Event) {
		if seen = append(seen, e.Index); len(seen) == 3 {
			cancel()
		}
	}))
	if len(seen) != 3 || seen[0] != 1 || seen[2] != 3 {
		t.Fatalf("got %v", seen)
	}
}
