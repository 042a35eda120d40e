package testenv

import (
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
)

// NATS is an embedded server with its streams, for tests.
type NATS struct {
	*broker.Embedded
	config broker.EmbeddedConfig
}

// StartNATS starts a server for some trainers; it ends with the test.
func StartNATS(t testing.TB, trainers ...string) NATS {
	t.Helper()
	c := broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Port: FreePort(t), Trainers: trainers, Relaxed: true, Log: zerolog.Nop()}
	n := NATS{Serve(t, c), c}
	if err := n.Worker(t, "setup").Setup(t.Context(), broker.StreamsConfig{}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Again is the same server, after Shutdown.
func (n NATS) Again(t testing.TB) NATS {
	t.Helper()
	n.Embedded = Serve(t, n.config)
	return n
}

// Serve starts a server, again if it was there before; it ends with the test.
func Serve(t testing.TB, c broker.EmbeddedConfig) *broker.Embedded {
	t.Helper()
	srv, err := broker.StartEmbedded(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

// FreePort is a port of the loopback address that nobody has at the moment. It
// is below those from which the kernel gives one to whoever asks for any, so that
// a server that is started again finds it free.
func FreePort(t testing.TB) int {
	t.Helper()
	const first, count = 20_000, 12_000
	var err error
	for range 100 {
		port := first + rand.IntN(count)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatalf("no port is free: %v", err)
	return 0
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
