package broker

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/subjects"
)

// A reader of a stream returns when the server goes away between two batches.
// Otherwise a worker that is told to stop would wait for the server's return.
func TestAReaderEndsWithItsServer(t *testing.T) {
	t.Parallel()
	srv, err := StartEmbedded(EmbeddedConfig{StateDir: t.TempDir(), Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	b, err := Dial(t.Context(), Config{URL: srv.URL(), Creds: srv.AdminCreds(), Inbox: InboxFor("worker", "w1"), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Streams.Setup(t.Context(), StreamsConfig{}); err != nil {
		t.Fatal(err)
	}
	const messages = 600 // more than one batch
	for i := range messages {
		if _, err := b.js.Publish(t.Context(), subjects.Dead(fmt.Sprintf("test%d", i%2), "test"), nil); err != nil {
			t.Fatal(err)
		}
	}
	read := 0
	err = b.Messages.Read(t.Context(), subjects.StreamDead, subjects.DeadFilter, 0, func(jetstream.Msg, *jetstream.MsgMetadata) bool {
		if read++; read == 512 {
			srv.Shutdown()
		}
		return true
	})
	if err == nil || read != 512 {
		t.Fatalf("%d of %d messages were read, and the error is %v", read, messages, err)
	}
}
