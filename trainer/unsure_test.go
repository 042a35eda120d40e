package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// behind starts a process of the trainer that is connected through a proxy.
func (b *bench) behind(t *testing.T, state string) (*trainer.Trainer, *testenv.Proxy) {
	t.Helper()
	p := testenv.NewProxy(t, b.nats.URL()[len("nats://"):])
	br, err := broker.Dial(t.Context(), broker.Config{URL: p.URL(), Creds: b.nats.TrainerCreds("alpha"), Name: "far", Inbox: broker.InboxFor("trainer", "alpha"), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(br.Close)
	b.trainer.Close()
	tr, err := trainer.Dial(t.Context(), trainer.Config{Broker: br, Name: "alpha", State: state, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr, p
}

func group(name string, ids ...schema.ID) []schema.Request {
	var all []schema.Request
	for i, id := range ids {
		r := harness.Request(id)
		r.Group, r.Index = name, i
		all = append(all, r)
	}
	return all
}

// queued waits until the queue has n messages.
func (b *bench) queued(t *testing.T, n uint64) {
	t.Helper()
	s := b.stream(t, subjects.Queue("alpha"))
	harness.Eventually(t, fmt.Sprintf("a queue of %d messages", n), 5*time.Minute, func() bool {
		info, err := s.Info(t.Context())
		harness.Must(t, err)
		return info.State.Msgs == n
	})
}

// TestASubmitWithUnknownOutcomeForgetsNothing: the answer of the server is late,
// but the requests are on the queue.
func TestASubmitWithUnknownOutcomeForgetsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "state")
	tr, proxy := b.behind(t, file)
	proxy.Set(false, true, 0)
	short, cancel := context.WithCancel(t.Context())
	submitted := make(chan error, 1)
	go func() { submitted <- tr.Submit(short, group("g", "alpha-1", "alpha-2")) }()
	b.queued(t, 2)
	cancel()
	if err := <-submitted; !errors.Is(err, trainer.ErrUnsure) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if n := tr.Outstanding(); n != 2 {
		t.Fatalf("%d rollouts are outstanding", n)
	}
	proxy.Heal()
	ran := map[schema.ID]bool{b.run(t): true}
	if r, err := tr.NextResult(t.Context()); err != nil || !ran[r.ID] {
		t.Fatalf("got %v, %v", r.ID, err)
	}
	tr.Close()
	again := b.start(t, func(c *trainer.Config) { c.State = file })
	if n := again.Outstanding(); n != 1 {
		t.Fatalf("after a restart %d rollouts are outstanding", n)
	}
	ran[b.run(t)] = true
	if r, err := again.NextResult(t.Context()); err != nil || !ran[r.ID] {
		t.Fatalf("got %v, %v", r.ID, err)
	}
}

func TestCloseDuringASubmitForgetsNothing(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "state")
	tr, proxy := b.behind(t, file)
	proxy.Set(false, true, 0)
	submitted := make(chan error, 1)
	go func() { submitted <- tr.Submit(t.Context(), group("g", "alpha-1", "alpha-2")) }()
	b.queued(t, 2)
	tr.Close()
	if err := <-submitted; !errors.Is(err, trainer.ErrUnsure) || !errors.Is(err, trainer.ErrClosed) {
		t.Fatalf("got %v", err)
	}
	if n := tr.Outstanding(); n != 2 {
		t.Fatalf("%d rollouts are outstanding", n)
	}
	if err := tr.Submit(t.Context(), []schema.Request{harness.Request("alpha-3")}); !errors.Is(err, trainer.ErrClosed) || errors.Is(err, trainer.ErrUnsure) {
		t.Fatalf("a closed trainer: %v", err)
	}
	again := b.start(t, func(c *trainer.Config) { c.State = file })
	if n := again.Outstanding(); n != 2 {
		t.Fatalf("after a restart %d rollouts are outstanding", n)
	}
}

// TestASubmitThatIsRefusedForgetsOnlyItsOwn: an earlier submit of the same id
// stays outstanding.
func TestASubmitThatIsRefusedForgetsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.nats.Worker(t, "w9").Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxQueue: 2}); err != nil {
		t.Fatal(err)
	}
	if err := b.trainer.Submit(t.Context(), group("g", "alpha-1", "alpha-2")); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := b.trainer.Submit(short, group("h", "alpha-2", "alpha-3", "alpha-4"))
	if err == nil || b.trainer.Outstanding() < 2 {
		t.Fatalf("got %v, %d outstanding", err, b.trainer.Outstanding())
	}
	b.run(t)
	b.run(t)
	for range 2 {
		if r, err := b.trainer.NextResult(t.Context()); err != nil || r.ID != "alpha-1" && r.ID != "alpha-2" {
			t.Fatalf("got %v, %v", r.ID, err)
		}
	}
}
