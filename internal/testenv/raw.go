package testenv

import (
	"testing"

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
