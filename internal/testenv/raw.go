package testenv

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
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

// DeadLetter stores a dead request of a trainer, as a worker that cannot read it does.
func DeadLetter(t testing.TB, url, admin, trainer string, body []byte) {
	t.Helper()
	js, err := jetstream.New(Raw(t, url, admin, "_INBOX.test"))
	if err == nil {
		_, err = js.PublishMsg(t.Context(), &nats.Msg{
			Subject: subjects.Dead("unreadable", subjects.Queue(trainer)), Data: body,
			Header: nats.Header{subjects.HeaderSubject: {subjects.Request(subjects.DefaultLane, trainer)}, subjects.HeaderReason: {"it is no message"}},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Hear returns the bodies of the messages on a subject that are published from now on.
func Hear(t testing.TB, url, seed, subject string) <-chan []byte {
	t.Helper()
	nc := Raw(t, url, seed, "_INBOX.test")
	heard := make(chan []byte, 100)
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		select {
		case heard <- m.Data:
		case <-t.Context().Done():
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return heard
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

// ForgetRequest removes the kept copy of a rollout's request.
func (p *Pool) ForgetRequest(t testing.TB, id schema.ID) {
	t.Helper()
	js, err := jetstream.New(Raw(t, p.Server.URL(), p.Server.AdminCreds(), "_INBOX.test"))
	var records jetstream.Stream
	if err == nil {
		records, err = js.Stream(t.Context(), subjects.Records(id.Trainer()))
	}
	if err == nil {
		err = records.Purge(t.Context(), jetstream.WithPurgeSubject(subjects.RequestCopy(id)))
	}
	if err != nil {
		t.Fatal(err)
	}
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
