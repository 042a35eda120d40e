package queue_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Operations that do not wait for the server return ErrUnreachable.
func TestOperationsThatDoNotWaitReportTheOutage(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.Server.Shutdown()
	for name, do := range map[string]func() error{
		"state": func() error { _, err := b.Trainer.Records.State(t.Context(), "alpha-1"); return err },
		"submit": func() error {
			_, err := b.Trainer.Submit(t.Context(), 2, []schema.Request{harness.Request("alpha-1")})
			return err
		},
		"group": func() error {
			_, err := b.Trainer.Submit(t.Context(), 2, []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2")})
			return err
		},
		"cancel": func() error { return b.Trainer.Cancel([]schema.ID{"alpha-1"}, nil, "enough") },
		"hold": func() error {
			return b.Trainer.Hold(&schema.Hold{V: schema.Version, Instance: "i1", Serial: 1, All: true})
		},
	} {
		var err error
		harness.Eventually(t, name, 5*time.Minute, func() bool { err = do(); return errors.Is(err, broker.ErrUnreachable) }) // after the client has noticed
		if strings.Contains(err.Error(), "nats:") {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.Restart(t)
}

// A trainer that starts while the server is away waits until it is back.
func TestATrainerWaitsForAServerThatIsAway(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	log := testenv.NewRetries()
	side, err := queue.NewTrainer(testenv.DialAt(t, b.Server.URL(), b.Server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"), zerolog.New(log)), "alpha")
	harness.Must(t, err)
	b.Server.Shutdown()
	there := make(chan error, 1)
	go func() { there <- side.AwaitSetup(t.Context()) }()
	log.Wait(t)
	b.Restart(t)
	harness.Must(t, <-there)
}

// Streams in memory come back after a restart of the server also while a client
// listens to every subject, so that no write is answered with "no responders".
func TestLeasesComeBackBesideAListenerToEverything(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	auth, err := nats.NkeyOptionFromSeed(b.Server.AdminCreds())
	harness.Must(t, err)
	nc, err := nats.Connect(b.Server.URL(), auth, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	_, err = nc.Subscribe(">", func(*nats.Msg) {})
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	b.Server.Shutdown()
	back := nc.StatusChanged(nats.CONNECTED)
	b.Restart(t)
	<-back
	harness.Eventually(t, "a submitted request", 5*time.Minute, func() bool {
		_, err := b.Trainer.Submit(t.Context(), 2, []schema.Request{harness.Request("alpha-1")})
		return err == nil
	})
	js := b.JetStream(t)
	harness.Eventually(t, "the leases", 5*time.Minute, func() bool {
		_, err := js.Stream(t.Context(), subjects.StreamLeases)
		return err == nil
	})
}

// A queue without its consumers gets them back, also while a client listens to
// every subject, so that no pull is answered with "no responders".
func TestConsumersComeBackBesideAListenerToEverything(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	auth, err := nats.NkeyOptionFromSeed(b.Server.AdminCreds())
	harness.Must(t, err)
	nc, err := nats.Connect(b.Server.URL(), auth)
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	_, err = nc.Subscribe(">", func(*nats.Msg) {})
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	js := b.JetStream(t)
	for lane := range subjects.Lanes {
		harness.Must(t, js.DeleteConsumer(t.Context(), subjects.Queue("alpha"), subjects.ConsumerOf(lane)))
	}
	b.Submit(t, harness.Request("alpha-1"))
	if j := b.Take(t); j.Request.ID != "alpha-1" {
		t.Fatalf("got %s", j.Request.ID)
	}
}
