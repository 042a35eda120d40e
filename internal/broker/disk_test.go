package broker

import (
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
)

// The limit of the server must not depend on the room that other files leave at
// the time of its start: the server would make no streams above it.
func TestTheServersLimitIsTheSizeOfTheDisk(t *testing.T) {
	dir := t.TempDir()
	e, err := StartEmbedded(EmbeddedConfig{StateDir: filepath.Join(dir, "nats"), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Shutdown()
	want, err := storeLimit(dir)
	if err != nil || want < 1<<20 {
		t.Fatalf("got %d, %v", want, err)
	}
	if got := e.srv.JetStreamConfig().MaxStore; got != want {
		t.Errorf("the server's limit is %d, the disk has %d", got, want)
	}
}
