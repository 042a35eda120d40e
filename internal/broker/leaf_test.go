package broker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// Only the credential of a site makes a leaf node, and it makes nothing else: no other
// client can take part as a server, and a site reads and writes through its server alone.
func TestTheCredentialOfASite(t *testing.T) {
	t.Parallel()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	harness.Must(t, keys.AddTrainer("alpha", ""))
	harness.Must(t, keys.AddWorker("w1", ""))
	harness.Must(t, keys.AddLeaf("paris", ""))
	port, leaves := testenv.FreePort(t), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	hub, _ := serveFile(t, keys, broker.ServerFile{Listen: fmt.Sprintf("127.0.0.1:%d", port), Store: t.TempDir(), LeafListen: leaves})
	own := filepath.Join(keys.Dir(), "leaf-paris.nk")

	for name, seed := range map[string]string{"a worker": keys.WorkerCreds("w1"), "a trainer": keys.TrainerCreds("alpha"), "the admin": keys.AdminCreds(), "a watcher": keys.OpsCreds()} {
		_, said := serveFile(t, siteOf(t, seed), broker.ServerFile{Name: "paris", Listen: "127.0.0.1:-1", LeafOf: []string{leaves}})
		harness.Eventually(t, "the refusal of "+name, 5*time.Minute, func() bool { return strings.Contains(said.String(), "Authorization Violation") })
	}
	if n := hub.NumLeafNodes(); n != 0 {
		t.Errorf("%d leaf nodes were admitted with other credentials", n)
	}
	serveFile(t, siteOf(t, own), broker.ServerFile{Name: "paris", Listen: "127.0.0.1:-1", LeafOf: []string{leaves}})
	harness.Eventually(t, "the leaf node", 5*time.Minute, func() bool { return hub.NumLeafNodes() == 1 })

	for name, tt := range map[string]struct {
		seed string
		ok   bool
	}{"a worker": {keys.WorkerCreds("w1"), true}, "the site": {own, false}} {
		key, err := nats.NkeyOptionFromSeed(tt.seed)
		harness.Must(t, err)
		nc, err := nats.Connect(hub.ClientURL(), key)
		if err == nil {
			nc.Close()
		}
		if (err == nil) != tt.ok {
			t.Errorf("%s as a client: %v", name, err)
		}
	}
}

// A hostile site with a server that sets no limits is not the admin to a machine.
func TestASiteIsNotTheAdmin(t *testing.T) {
	t.Parallel()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	harness.Must(t, keys.AddLeaf("paris", ""))
	leaves := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	hub, _ := serveFile(t, keys, broker.ServerFile{Listen: "127.0.0.1:-1", Store: t.TempDir(), LeafListen: leaves})
	own := siteOf(t, filepath.Join(keys.Dir(), "leaf-paris.nk"))
	site, _ := serveFile(t, own, broker.ServerFile{Name: "paris", Listen: "127.0.0.1:-1", LeafOf: []string{leaves}}, func(o *server.Options) {
		for _, u := range o.Nkeys {
			u.Permissions = nil
		}
	})
	admin, hostile := connectTo(t, hub, keys.AdminCreds()), connectTo(t, site, own.WorkerCreds("w7"))
	for _, tt := range []struct {
		from, to                 *nats.Conn
		forbidden, allowed, both string
	}{
		{hostile, admin, "machine.m1.down.1-a.@admin.x", "machine.m1.down.1-a.w7.x", "machine.m1.down.*.*.*"},
		{admin, hostile, "machine.m1.up.@admin.x", "machine.m1.up.w7.x", "machine.*.up.*.*"},
	} {
		heard := make(chan *nats.Msg, 1000)
		for _, subject := range []string{tt.both, tt.forbidden} {
			_, err := tt.to.ChanSubscribe(subject, heard)
			harness.Must(t, err)
		}
		harness.Must(t, tt.to.Flush())
		harness.Eventually(t, "a message on "+tt.allowed, time.Minute, func() bool { // the servers tell each other of the subscriptions
			harness.Must(t, tt.from.Publish(tt.forbidden, nil))
			harness.Must(t, tt.from.Publish(tt.allowed, nil))
			harness.Must(t, tt.from.Flush())
			select {
			case m := <-heard:
				if m.Subject == tt.forbidden {
					t.Fatalf("%s arrived", m.Subject)
				}
				return true
			default:
				return false
			}
		})
	}
}

func connectTo(t *testing.T, srv *server.Server, seed string) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(seed)
	harness.Must(t, err)
	nc, err := nats.Connect(srv.ClientURL(), key)
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// siteOf makes the keyring of site paris with this seed as its credential.
func siteOf(t *testing.T, seed string) *broker.Keyring {
	t.Helper()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	data, err := os.ReadFile(seed)
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(filepath.Join(keys.Dir(), "leaf-paris.nk"), data, 0o600))
	harness.Must(t, keys.AddWorker("w7", ""))
	return keys
}

// serveFile starts a server with the file of a keyring, and collects its errors.
func serveFile(t *testing.T, keys *broker.Keyring, f broker.ServerFile, change ...func(*server.Options)) (*server.Server, *harness.Buffer) {
	t.Helper()
	text, err := keys.ServerFile(f)
	harness.Must(t, err)
	if strings.Contains(text, "\"SU") || strings.Contains(text, " SU") {
		t.Errorf("the file has a secret:\n%s", text)
	}
	file := filepath.Join(filepath.Dir(keys.Dir()), "nats.conf")
	harness.Must(t, os.WriteFile(file, []byte(text), 0o600))
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatalf("nats-server cannot read the file: %v\n%s", err, text)
	}
	opts.NoSigs = true
	for _, c := range change {
		c(opts)
	}
	srv, err := server.NewServer(opts)
	harness.Must(t, err)
	said := &harness.Buffer{}
	srv.SetLoggerV2(errorLog{said}, false, false, false)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatalf("the server did not start: %s", said)
	}
	return srv, said
}

// errorLog is a log of a server that keeps its errors.
type errorLog struct{ to *harness.Buffer }

func (l errorLog) Errorf(format string, v ...any) { fmt.Fprintf(l.to, format+"\n", v...) }
func (l errorLog) Fatalf(format string, v ...any) { l.Errorf(format, v...) }
func (errorLog) Noticef(string, ...any)           {}
func (errorLog) Warnf(string, ...any)             {}
func (errorLog) Debugf(string, ...any)            {}
func (errorLog) Tracef(string, ...any)            {}

// A leaf node without the credential of its site, or with a part of another kind of
// server, is refused before a server reads it.
func TestAnImpossibleLeafNode(t *testing.T) {
	t.Parallel()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	harness.Must(t, keys.AddLeaf("oslo", ""))
	for name, tt := range map[string]struct {
		f    broker.ServerFile
		says string
	}{
		"no credential":     {broker.ServerFile{Name: "rome", LeafOf: []string{"hub"}}, "site rome"},
		"a user in a host":  {broker.ServerFile{Name: "rome", LeafOf: []string{"a:b@hub"}}, "HOST:PORT"},
		"an empty host":     {broker.ServerFile{Name: "rome", LeafOf: []string{""}}, "HOST:PORT"},
		"a cluster":         {broker.ServerFile{Name: "rome", LeafOf: []string{"hub"}, Cluster: []broker.Member{{Name: "rome", Host: "h"}}}, "want a leaf node alone"},
		"with leaves":       {broker.ServerFile{Name: "rome", LeafOf: []string{"hub"}, LeafListen: "0.0.0.0:7422"}, "want a leaf node alone"},
		"sites in secret":   {broker.ServerFile{}, "the sites oslo"},
		"a listener of two": {broker.ServerFile{LeafListen: "a\"\nb"}, "no quotes"},
	} {
		if _, err := keys.ServerFile(tt.f); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
