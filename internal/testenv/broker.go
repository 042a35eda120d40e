package testenv

import (
	"net"
	"net/url"
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
	c := broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Trainers: trainers, Relaxed: true, Log: zerolog.Nop()}
	n := NATS{start(t, c), c}
	if err := n.Worker(t, "setup").Setup(t.Context(), broker.StreamsConfig{}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Again is the same server, after Shutdown.
func (n NATS) Again(t testing.TB) NATS {
	t.Helper()
	n.Embedded = Again(t, n.config, n.Embedded)
	return n
}

// Again starts a server where it was, after Shutdown; it ends with the test.
func Again(t testing.TB, c broker.EmbeddedConfig, was *broker.Embedded) *broker.Embedded {
	t.Helper()
	at, err := url.Parse(was.URL())
	if err != nil {
		t.Fatal(err)
	}
	if c.Port, err = strconv.Atoi(at.Port()); err != nil {
		t.Fatal(err)
	}
	return start(t, c)
}

func start(t testing.TB, c broker.EmbeddedConfig) *broker.Embedded {
	t.Helper()
	srv, err := broker.StartEmbedded(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

// FreePort is a port of the loopback address that nobody has at the moment.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no TCP address", l.Addr())
	}
	return at.Port
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
