package testenv

import (
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
)

// NATS is an embedded server with its streams, for tests.
type NATS struct{ *broker.Embedded }

// StartNATS starts a server for some trainers; it ends with the test.
func StartNATS(t testing.TB, trainers ...string) NATS {
	t.Helper()
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Trainers: trainers, Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	n := NATS{srv}
	if err := n.Worker(t, "setup").Setup(t.Context(), broker.StreamsConfig{}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n NATS) dial(t testing.TB, creds, role, name string) *broker.Broker {
	t.Helper()
	b, err := broker.Dial(t.Context(), broker.Config{URL: n.URL(), Creds: creds, Name: name, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// Worker connects as a worker.
func (n NATS) Worker(t testing.TB, wid string) *broker.Broker {
	t.Helper()
	return n.dial(t, n.WorkerCreds(), "worker", wid)
}

// Trainer connects as a trainer.
func (n NATS) Trainer(t testing.TB, tid string) *broker.Broker {
	t.Helper()
	return n.dial(t, n.TrainerCreds(tid), "trainer", tid)
}

// Ops connects as somebody who watches.
func (n NATS) Ops(t testing.TB) *broker.Broker {
	t.Helper()
	return n.dial(t, n.OpsCreds(), "ops", "ops")
}
