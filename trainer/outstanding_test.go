package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// connect connects to NATS with all rights.
func (b *bench) connect(t *testing.T) *nats.Conn {
	t.Helper()
	seed, err := nats.NkeyOptionFromSeed(b.nats.AdminCreds())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.nats.URL(), seed, nats.CustomInboxPrefix("_INBOX.test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (b *bench) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(b.connect(t))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// stream opens a stream with the workers' rights.
func (b *bench) stream(t *testing.T, name string) jetstream.Stream {
	t.Helper()
	s, err := b.jetStream(t).Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (b *bench) run(t *testing.T) schema.ID {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	j, err := b.worker.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Done(ctx, schema.Result{ID: j.Request.ID, Attempt: j.Attempt, Status: schema.StatusDone}); err != nil {
		t.Fatal(err)
	}
	return j.Request.ID
}

func TestATrainerStartedAgainStillWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "state")
	keep := func(c *trainer.Config) { c.State = file }
	first := b.start(t, keep)
	if err := first.Submit(t.Context(), []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2"), harness.Request("alpha-3")}); err != nil {
		t.Fatal(err)
	}
	if _, err := trainer.Dial(t.Context(), trainer.Config{Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", State: file}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("two trainers share a state: %v", err)
	}
	early := b.run(t)
	if r, err := first.NextResult(t.Context()); err != nil || r.ID != early {
		t.Fatalf("got %v, %v", r.ID, err)
	}
	first.Close()
	while := b.run(t) // without a running trainer
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"submit":{"id":"alpha-torn`); err != nil { // a write that a crash cut off
		t.Fatal(err)
	}
	f.Close()
	second := b.start(t, keep)
	if n := second.Outstanding(); n != 2 {
		t.Fatalf("%d rollouts are outstanding", n)
	}
	if r, err := second.NextResult(t.Context()); err != nil || r.ID != while {
		t.Fatalf("got %v, %v", r.ID, err)
	}
	last := b.run(t)
	if r, err := second.NextResult(t.Context()); err != nil || r.ID != last || second.Outstanding() != 0 {
		t.Fatalf("got %v, %v", r.ID, err)
	}
	second.Close()
	if third := b.start(t, keep); third.Outstanding() != 0 {
		t.Fatal("what has ended is outstanding again")
	}
}

func TestOnlyLostRequestsAreSubmittedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.start(t, func(c *trainer.Config) { c.AuditEvery = 300 * time.Millisecond })
	var all []schema.Request
	for i := range 20 {
		all = append(all, harness.Request(schema.ID(fmt.Sprintf("alpha-%d", i))))
	}
	if err := tr.Submit(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	queue := b.stream(t, subjects.Queue("alpha"))
	count := func() uint64 {
		info, err := queue.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Msgs
	}
	before := queue.CachedInfo().State.LastSeq
	<-time.After(1500 * time.Millisecond) // five rounds, in which nothing is lost
	if info, err := queue.Info(t.Context()); err != nil || info.State.LastSeq != before || count() != 20 {
		t.Fatalf("queued rollouts were submitted again: %+v, %v", info.State, err)
	}
	// The server forgets the message and its deduplication id.
	for seq := uint64(1); seq <= 5; seq++ {
		if err := queue.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	cfg := queue.CachedInfo().Config
	cfg.Duplicates = 100 * time.Millisecond
	seed, err := nats.NkeyOptionFromSeed(b.nats.AdminCreds())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.nats.URL(), seed, nats.CustomInboxPrefix("_INBOX.test2"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "a queue of 20 requests", 5*time.Minute, func() bool { return count() == 20 })
}

// cancelAt is a log that ends a context once it has a text.
type cancelAt struct {
	text   string
	cancel context.CancelFunc
}

func (c cancelAt) Write(line []byte) (int, error) {
	if strings.Contains(string(line), c.text) {
		c.cancel()
	}
	return len(line), nil
}

func TestSubmitWaitsWhileTheQueueIsFull(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.nats.Worker(t, "w9").Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxQueue: 2}); err != nil {
		t.Fatal(err)
	}
	group := []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2"), harness.Request("alpha-3")}
	b.trainer.Close()
	refused, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := b.config(t)
	c.Log = zerolog.New(cancelAt{"the request queue is full", cancel}) // a time limit could end in the middle of a write
	var err error
	b.trainer, err = trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	t.Cleanup(b.trainer.Close)
	if err := b.trainer.Submit(refused, group); !errors.Is(err, queue.ErrQueueFull) || b.trainer.Outstanding() != 0 {
		t.Fatalf("got %v, %d outstanding", err, b.trainer.Outstanding())
	}
	if err := b.trainer.Submit(t.Context(), group[:2]); err != nil {
		t.Fatal(err)
	}
	submitted := make(chan error, 1)
	go func() { submitted <- b.trainer.Submit(t.Context(), group[2:]) }()
	b.run(t)
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	bad := harness.Request("alpha-9")
	bad.Sandbox.Backend = "no such"
	var invalid *schema.InvalidError
	if err := b.trainer.Submit(t.Context(), []schema.Request{bad}); !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
}

func TestALowerAttemptIsRefusedByATrainerThatWasStartedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	state := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 3, Tries: 1, Worker: "w9", Instance: "i"}
	data, err := schema.Encode(&state)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := nats.NkeyOptionFromSeed(b.nats.AdminCreds())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.nats.URL(), seed)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish(subjects.State("alpha-1"), data); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var f *schema.Fault
	if a := <-b.ask(t.Context(), 2, 1, nil); !errors.As(a.err, &f) || f.Status != 409 {
		t.Fatalf("got %v", a.err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	mine, handed := b.ask(ctx, 3, 1, nil), make(chan struct{})
	go func() {
		defer close(handed)
		if p, err := b.trainer.Next(ctx); err == nil {
			_ = p.Reply(text("three")) // the answer says it
		}
	}()
	said(t, <-mine, "three")
	<-handed
}

func TestAGroupAndEverythingCanBeCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var all []schema.Request
	for i := range 6 {
		r := harness.Request(schema.ID(fmt.Sprintf("alpha-%d", i)))
		r.Group = []string{"a", "b", "c"}[i/2]
		all = append(all, r)
	}
	if err := b.trainer.Submit(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	if err := b.trainer.CancelGroup("b", "stale"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := b.trainer.NextResult(t.Context())
		if err != nil || r.Status != schema.StatusCancelled || r.ID != "alpha-2" && r.ID != "alpha-3" {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
	if err := b.trainer.CancelAll("over"); err != nil {
		t.Fatal(err)
	}
	if err := b.trainer.Results(t.Context(), func(r schema.Result) {
		if r.Status != schema.StatusCancelled {
			t.Errorf("got %+v", r)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
