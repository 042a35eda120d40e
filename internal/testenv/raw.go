package testenv

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Raw connects to the server with a seed and an inbox prefix, without package
// broker.
func (n NATS) Raw(t testing.TB, seed, inbox string) *nats.Conn {
	t.Helper()
	return Raw(t, n.URL(), seed, inbox)
}

// Raw connects to a server with a seed and an inbox prefix, without package broker.
func Raw(t testing.TB, url, seed, inbox string) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, key, nats.CustomInboxPrefix(inbox))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// JetStream connects to the pool's server with all rights, without package broker.
func (p *Pool) JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(Raw(t, p.Server.URL(), p.Server.AdminCreds(), "_INBOX.test"))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// ServePlain starts a server without accounts, with this configuration, and returns
// its URL. It stops when the test ends.
func ServePlain(t testing.TB, config string) string {
	t.Helper()
	opts := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}
	if err := opts.ProcessConfigString(config); err != nil {
		t.Fatal(err)
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server did not start")
	}
	return srv.ClientURL()
}
