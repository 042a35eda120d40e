package broker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// A reload admits a new trainer and ends no connection.
func TestAConnectionOutlivesAReload(t *testing.T) {
	t.Parallel()
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Trainers: []string{"alpha", "beta"}, Workers: []string{"w1"}, Relaxed: true, Log: zerolog.Nop()})
	connect := func(tid string) (*nats.Conn, error) {
		key, err := nats.NkeyOptionFromSeed(srv.TrainerCreds(tid))
		harness.Must(t, err)
		return nats.Connect(srv.URL(), key)
	}
	alpha, err := connect("alpha")
	harness.Must(t, err)
	defer alpha.Close()
	harness.Must(t, srv.AddTrainer("gamma", ""))
	if early, err := connect("gamma"); err == nil {
		early.Close()
		t.Error("a trainer was admitted before the reload")
	}
	harness.Must(t, broker.ReloadServers(t.Context(), srv.URL(), srv.SystemCreds()))
	gamma, err := connect("gamma")
	harness.Must(t, err)
	gamma.Close()
	harness.Must(t, alpha.Flush())
	if n := alpha.Stats().Reconnects; n > 0 {
		t.Errorf("the other trainer's connection was lost %d times", n)
	}
}

// A credential that cannot be read shuts out its client alone: the server starts.
func TestABadCredentialShutsOutItsClientAlone(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "nats")
	creds := filepath.Join(state, "creds")
	harness.Must(t, os.MkdirAll(filepath.Join(creds, "trainer-folder.nk"), 0o700)) // reading it fails, for root as well
	harness.Must(t, os.WriteFile(filepath.Join(creds, "worker-empty.nk"), nil, 0o600))
	harness.Must(t, os.WriteFile(filepath.Join(creds, "trainer-Bad Name.nk"), nil, 0o600))
	var log bytes.Buffer
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: state, Trainers: []string{"alpha"}, Workers: []string{"w1"}, Relaxed: true, Log: zerolog.New(&log)})
	for _, creds := range []string{srv.TrainerCreds("alpha"), srv.WorkerCreds("w1")} {
		key, err := nats.NkeyOptionFromSeed(creds)
		harness.Must(t, err)
		nc, err := nats.Connect(srv.URL(), key)
		harness.Must(t, err)
		nc.Close()
	}
	for _, name := range []string{"folder", "empty", "Bad Name"} {
		if !strings.Contains(log.String(), name) {
			t.Errorf("the log does not name %q:\n%s", name, &log)
		}
	}
	if _, err := srv.ServerFile(broker.ServerFile{}); err == nil {
		t.Error("a file was written without some of the clients")
	}
}
