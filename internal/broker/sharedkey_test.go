package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
)

// TestAKeyHasOneName: a second name for a key is refused, and a keyring that has one
// starts a server without these clients, which names them.
func TestAKeyHasOneName(t *testing.T) {
	pair, err := nkeys.CreateUser()
	harness.Must(t, err)
	public, err := pair.PublicKey()
	harness.Must(t, err)
	dir := t.TempDir()
	keys, err := broker.OpenKeyring(filepath.Join(dir, "creds"))
	harness.Must(t, err)
	harness.Must(t, keys.AddTrainer("alpha", public))
	harness.Must(t, keys.AddTrainer("alpha", public))
	for _, err := range []error{keys.AddTrainer("beta", public), keys.AddWorker("w1", public)} {
		if err == nil || !strings.Contains(err.Error(), "is the key of trainer-alpha already") {
			t.Errorf("got %v", err)
		}
	}
	harness.Must(t, os.WriteFile(filepath.Join(keys.Dir(), "trainer-beta.pub"), []byte(public), 0o600))
	if _, err := keys.ServerFile(broker.ServerFile{}); err == nil || !strings.Contains(err.Error(), "(trainer alpha, trainer beta)") {
		t.Errorf("the file of a server: %v", err)
	}
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: dir, Trainers: []string{"gamma"}, Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Shutdown()
}
