package queue_test

import (
	"context"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
)

// TestATrainerThatIsAdmittedLaterReachesConnectedWorkers admits trainers one after the
// other while a worker is connected.
func TestATrainerThatIsAdmittedLaterReachesConnectedWorkers(t *testing.T) {
	t.Parallel()
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: t.TempDir(), Trainers: []string{"local"}, Workers: []string{"w1"}, Relaxed: true, Log: zerolog.Nop()})
	harness.Must(t, err)
	defer srv.Shutdown()
	dial := func(creds, role, name string) *broker.Broker {
		b, err := broker.Dial(t.Context(), broker.Config{URL: srv.URL(), Creds: creds, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
		harness.Must(t, err)
		t.Cleanup(b.Close)
		return b
	}
	wb := dial(srv.WorkerCreds("w1"), broker.RoleWorker, "w1")
	harness.Must(t, wb.Streams.Setup(t.Context(), broker.StreamsConfig{}))
	w, err := queue.NewWorker(wb, queue.WorkerConfig{Worker: "w1", Instance: "i1"})
	harness.Must(t, err)
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- w.Run(ctx) }()
	defer func() { cancel(); <-left }()
	for _, name := range []string{"alpha", "beta"} {
		harness.Must(t, srv.AddTrainer(name, ""))
		harness.Must(t, srv.Reload())
		tr, err := queue.NewTrainer(dial(srv.TrainerCreds(name), broker.RoleTrainer, name), name)
		harness.Must(t, err)
		if _, err := tr.Open(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := tr.Fleet(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
