package permissions_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// world is a server with two trainers, two workers, and their streams.
type world struct {
	url  string
	keys *broker.Keyring

	admin *nats.Conn
	js    jetstream.JetStream // the admin's
	gates *nats.Subscription  // the admin's, which answers frames with a reply subject
}

// worlds are the kinds of servers that every table is tried on.
func worlds(t *testing.T, try func(t *testing.T, w *world)) {
	t.Run("embedded", func(t *testing.T) {
		state := filepath.Join(t.TempDir(), "state")
		keys, err := broker.OpenKeyring(filepath.Join(state, "creds"))
		harness.Must(t, err)
		addMachines(t, keys)
		srv := testenv.Serve(t, broker.EmbeddedConfig{
			StateDir: state, Port: testenv.FreePort(t), Trainers: []string{"alpha", "beta"}, Workers: []string{"w1", "w2"}, Enroll: true, Relaxed: true, Log: zerolog.Nop(),
		})
		try(t, newWorld(t, srv.URL(), srv.Keyring))
	})
	t.Run("nats-server", func(t *testing.T) {
		keys := keyring(t, "alpha", "beta")
		port := testenv.FreePort(t)
		file := configFile(t, keys, broker.ServerFile{Listen: "127.0.0.1:" + strconv.Itoa(port), Store: filepath.Join(t.TempDir(), "js"), Enroll: true}, "nats.conf")
		startServer(t, testenv.NATSServer(t), file)
		url := "nats://127.0.0.1:" + strconv.Itoa(port)
		awaitServer(t, url, keys.AdminCreds())
		try(t, newWorld(t, url, keys))
	})
}

func keyring(t *testing.T, trainers ...string) *broker.Keyring {
	t.Helper()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	for _, tid := range trainers {
		harness.Must(t, keys.AddTrainer(tid, ""))
	}
	harness.Must(t, keys.AddWorker("w1", ""))
	harness.Must(t, keys.AddWorker("w2", ""))
	addMachines(t, keys)
	return keys
}

func addMachines(t *testing.T, keys *broker.Keyring) {
	t.Helper()
	harness.Must(t, keys.AddMachine("m1", ""))
	harness.Must(t, keys.AddMachine("m2", ""))
}

func configFile(t *testing.T, keys *broker.Keyring, f broker.ServerFile, name string) string {
	t.Helper()
	text, err := keys.ServerFile(f)
	harness.Must(t, err)
	text = strings.Replace(text, "sync_interval: always", "sync_interval: 2m", 1) // a faster test
	file := filepath.Join(filepath.Dir(keys.Dir()), name)
	harness.Must(t, os.WriteFile(file, []byte(text), 0o600))
	if _, err := server.ProcessConfigFile(file); err != nil {
		t.Fatalf("nats-server cannot read the file: %v\n%s", err, text)
	}
	return file
}

func startServer(t *testing.T, binary, file string) *exec.Cmd {
	t.Helper()
	log, err := os.Create(file + ".log")
	harness.Must(t, err)
	cmd := exec.Command(binary, "-c", file)
	cmd.Stdout, cmd.Stderr = log, log
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(file + ".log")
			t.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
	return cmd
}

// awaitServer waits until a server answers JetStream requests.
func awaitServer(t *testing.T, url, creds string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		b, err := broker.Dial(ctx, broker.Config{URL: url, Creds: creds, Inbox: broker.InboxFor("admin", "admin"), Log: zerolog.Nop()})
		if err == nil {
			op, stop := context.WithTimeout(ctx, time.Second)
			_, err = b.Check(op)
			stop()
			b.Close()
			if err == nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s does not answer: %v", url, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func newWorld(t *testing.T, url string, keys *broker.Keyring) *world {
	t.Helper()
	w := &world{url: url, keys: keys}
	w.admin = w.as(t, role{"admin", "admin"})
	var err error
	w.js, err = jetstream.New(w.admin)
	harness.Must(t, err)
	// A worker answers the first three. Nothing may follow if one answered the others.
	for _, subject := range []string{subjects.OpenFilter, subjects.AttachFilter, subjects.FleetFilter, subjects.CancelFilter, subjects.HoldFilter, "_INBOX.gate.>"} {
		sub, err := w.admin.QueueSubscribe(subject, subjects.CancelGroup, func(m *nats.Msg) { _ = m.Respond([]byte("answer")) })
		harness.Must(t, err)
		w.gates = sub // the last one
	}
	b := w.broker(t, role{"worker", "w1"})
	harness.Must(t, b.Streams.Setup(t.Context(), broker.StreamsConfig{}))
	for _, tid := range []string{"alpha", "beta"} {
		_, err := b.Trainers.Open(t.Context(), tid)
		harness.Must(t, err)
	}
	return w
}

// role is a client with a credential.
type role struct{ kind, name string }

func (r role) String() string { return r.kind + " " + r.name }

func (w *world) creds(r role) string {
	switch r.kind {
	case "trainer":
		return w.keys.TrainerCreds(r.name)
	case "worker":
		return w.keys.WorkerCreds(r.name)
	case "machine":
		return w.keys.MachineCreds(r.name)
	case "ops":
		return w.keys.OpsCreds()
	case "sys":
		return w.keys.SystemCreds()
	case "desk":
		return w.keys.DeskCreds()
	default:
		return w.keys.AdminCreds()
	}
}

// key is the key of a role. Hosts that enroll have no credential.
func (w *world) key(t *testing.T, r role) nats.Option {
	t.Helper()
	if r.kind != "enroll" {
		key, err := nats.NkeyOptionFromSeed(w.creds(r))
		harness.Must(t, err)
		return key
	}
	pair, err := broker.EnrollKey()
	harness.Must(t, err)
	public, err := pair.PublicKey()
	harness.Must(t, err)
	return nats.Nkey(public, pair.Sign)
}

// inbox is the prefix of a role's inboxes.
func (r role) inbox() string {
	if r.kind == "enroll" {
		return broker.EnrollInbox
	}
	return broker.InboxFor(r.kind, r.name)
}

// as connects with the role's credential, beside package broker.
func (w *world) as(t *testing.T, r role) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(w.url, w.key(t, r), nats.CustomInboxPrefix(r.inbox()), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func (w *world) broker(t *testing.T, r role) *broker.Broker {
	t.Helper()
	b, err := broker.Dial(t.Context(), broker.Config{URL: w.url, Creds: w.creds(r), Inbox: broker.InboxFor(r.kind, r.name), Log: zerolog.Nop()})
	harness.Must(t, err)
	t.Cleanup(b.Close)
	return b
}
