package testenv

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
)

// NATS is an embedded server with turngate's streams, for tests.
type NATS struct {
	*broker.Embedded
	config broker.EmbeddedConfig
}

// StartNATS starts a server with credentials for the trainers. It stops when the
// test ends.
func StartNATS(t testing.TB, trainers ...string) NATS {
	t.Helper()
	c := broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Port: FreePort(t), Trainers: trainers, Workers: workers(), Relaxed: true, Log: zerolog.Nop()}
	n := NATS{Serve(t, c), c}
	b := n.Worker(t, "setup")
	if err := b.Streams.Setup(t.Context(), broker.StreamsConfig{}); err != nil {
		t.Fatal(err)
	}
	for _, tid := range trainers {
		if _, err := b.Trainers.Open(t.Context(), tid); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// workers returns the names of the workers that a server of a test knows from its start.
// To admit another one is a reload of the server, which takes time.
func workers() []string {
	return []string{"setup", "a", "d", "e", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"}
}

// Again starts the same server again, after Shutdown.
func (n NATS) Again(t testing.TB) NATS {
	t.Helper()
	n.Embedded = Serve(t, n.config)
	return n
}

// Serve starts a server, or restarts it on its old state. It stops when the test
// ends.
func Serve(t testing.TB, c broker.EmbeddedConfig) *broker.Embedded {
	t.Helper()
	AwaitFree(t, c.Port)
	AwaitFree(t, c.Cluster.Port)
	srv, err := broker.StartEmbedded(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

// FreePort returns a port of the loopback address that is free and that no other
// test takes until this one ends. It is below the kernel's range of ephemeral
// ports, so that it stays free while a server restarts.
func FreePort(t testing.TB) int {
	t.Helper()
	const first, count = 20_000, 12_000
	dir := filepath.Join(os.TempDir(), "turngate-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(dir, 0o777) // tests of other users share it
	for range 100 {
		port := first + rand.IntN(count)
		lock, err := lockFile(filepath.Join(dir, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if free(t, port) {
			t.Cleanup(func() { _ = lock.Close() })
			return port
		}
		_ = lock.Close()
	}
	t.Fatal("no port is free")
	return 0
}

// AwaitFree waits until nothing listens on a port of the loopback address, 0 for none.
// A listener that this process closed may live on for a moment: each child process
// has a copy of it until its program starts.
func AwaitFree(t testing.TB, port int) {
	t.Helper()
	if port > 0 {
		harness.Eventually(t, "the end of the last server on port "+strconv.Itoa(port), 5*time.Minute, func() bool { return free(t, port) })
	}
}

// free connects and does not listen: a child process that starts at this moment would
// keep the listener.
func free(t testing.TB, port int) bool {
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// lockFile opens a file that no other process or test has locked. The lock ends
// when the file is closed or the process ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
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
	return n.dial(t, n.AdmitWorker(t, wid), "worker", wid)
}

// AdmitWorker makes a credential for a worker and returns its path.
func (n NATS) AdmitWorker(t testing.TB, wid string) string {
	t.Helper()
	return AdmitWorker(t, n.Embedded, wid)
}

// AdmitWorker makes a credential for a worker of a server and returns its path.
func AdmitWorker(t testing.TB, srv *broker.Embedded, wid string) string {
	t.Helper()
	file := srv.WorkerCreds(wid)
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if err := srv.AddWorker(wid, ""); err != nil {
		t.Fatal(err)
	}
	if err := srv.Reload(); err != nil {
		t.Fatal(err)
	}
	return file
}

// Admin connects with the credential for everything.
func (n NATS) Admin(t testing.TB) *broker.Broker {
	t.Helper()
	return n.dial(t, n.AdminCreds(), "admin", "admin")
}

// Trainer connects as a trainer.
func (n NATS) Trainer(t testing.TB, tid string) *broker.Broker {
	t.Helper()
	return n.dial(t, n.TrainerCreds(tid), "trainer", tid)
}

// Ops connects with the read-only credentials of an operator.
func (n NATS) Ops(t testing.TB) *broker.Broker {
	t.Helper()
	return n.dial(t, n.OpsCreds(), "ops", "ops")
}
