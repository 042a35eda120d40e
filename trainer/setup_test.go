package trainer_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/trainer"
)

// TestATrainerMayBeFirst: on a new server a trainer waits until a worker makes its
// streams.
func TestATrainerMayBeFirst(t *testing.T) {
	t.Parallel()
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Trainers: []string{"alpha"}, Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	dial := func(creds, role, name string) *broker.Broker {
		b, err := broker.Dial(t.Context(), broker.Config{URL: srv.URL(), Creds: creds, Name: name, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	started := make(chan error, 1)
	alpha := dial(srv.TrainerCreds("alpha"), "trainer", "alpha")
	go func() {
		tr, err := trainer.Dial(t.Context(), trainer.Config{Broker: alpha, Name: "alpha", Log: zerolog.Nop()})
		if err == nil {
			_, err = tr.PutBundle(t.Context(), []byte("bundle"))
			tr.Close()
		}
		started <- err
	}()
	select {
	case err := <-started:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	b := dial(testenv.AdmitWorker(t, srv, "w1"), "worker", "w1")
	if err := b.Streams.Setup(t.Context(), broker.StreamsConfig{}); err != nil {
		t.Fatal(err)
	}
	side, err := queue.NewWorker(b, queue.WorkerConfig{Worker: "w1", Instance: "i1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = side.Run(ctx)
	}()
	defer func() { cancel(); <-ended; side.Close() }()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
}
