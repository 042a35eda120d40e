package permissions_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// program is the built binary.
type program string

// run returns the exit status and both outputs.
func (p program) run(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	cmd := exec.Command(string(p), args...)
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// ok returns the output of a call that must succeed.
func (p program) ok(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errOut := p.run(t, args...)
	if code != 0 {
		t.Fatalf("%v: exit status %d\n%s%s", args, code, out, errOut)
	}
	return out
}

// member is a client that stays connected until the server shuts it out.
type member struct{ closed chan struct{} }

func join(t *testing.T, w *world, r role) member {
	t.Helper()
	m := member{make(chan struct{})}
	nc := connectSoon(t, w.url, keptKey(t, w, r.kind, r.name), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(m.closed) }))
	t.Cleanup(nc.Close)
	return m
}

func (m member) leaves(t *testing.T) {
	t.Helper()
	select {
	case <-m.closed:
	case <-time.After(10 * time.Second):
		t.Fatal("it is still connected")
	}
}

func (m member) stays(t *testing.T) {
	t.Helper()
	select {
	case <-m.closed:
		t.Fatal("it was disconnected")
	default:
	}
}

func contains(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, s := range want {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in:\n%s", s, text)
		}
	}
}

// TestCommandsBeforeTheFirstStart admits clients to a server that has never run,
// and starts it.
func TestCommandsBeforeTheFirstStart(t *testing.T) {
	turngate := program(testenv.Binary(t))
	state, port := filepath.Join(t.TempDir(), "state"), testenv.FreePort(t)
	url := "nats://127.0.0.1:" + strconv.Itoa(port)
	keys := filepath.Join(state, "creds")
	for _, kind := range []string{"trainer", "worker"} {
		contains(t, turngate.ok(t, kind, "add", "early", "--nats", url, "--keys", keys), "when a server", url)
		contains(t, turngate.ok(t, kind, "add", "gone", "--nats", "", "--keys", keys), "when a server")
		code, out, errOut := turngate.run(t, kind, "rm", "gone", "--nats", url, "--keys", keys)
		if code != 1 || strings.Contains(out+errOut, "shut out") || !strings.Contains(errOut, url) {
			t.Errorf("%s rm without a server: exit status %d\n%s%s", kind, code, out, errOut)
		}
		turngate.ok(t, kind, "add", "gone", "--nats", "", "--keys", keys)
		if out := turngate.ok(t, kind, "rm", "gone", "--nats", "", "--keys", keys); strings.Contains(out, "shut out") {
			t.Errorf("no server was asked: %s", out)
		}
	}
	if code, _, errOut := turngate.run(t, "trainer", "rm", "early", "--nats", "", "--keys", keys, "--delete-data"); code != 2 {
		t.Errorf("exit status %d: %s", code, errOut)
	}
	code, out, errOut := turngate.run(t, "trainer", "add", "early", "--nats", url, "--keys", keys, "--max-queue", "7")
	if code != 1 || !strings.Contains(errOut, "settings need a running server") {
		t.Errorf("settings without a server: exit status %d\n%s%s", code, out, errOut)
	}
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: state, Port: port, Relaxed: true, Log: zerolog.Nop()})
	w := &world{url: srv.URL(), keys: srv.Keyring}
	join(t, w, role{"trainer", "early"}).stays(t)
	join(t, w, role{"worker", "early"}).stays(t)
	if names, err := srv.Trainers(); err != nil || len(names) != 1 {
		t.Errorf("got %v, %v", names, err)
	}
}

// TestCommandsWhileAServerRuns adds and removes clients of a server of turngate.
func TestCommandsWhileAServerRuns(t *testing.T) {
	turngate := program(testenv.Binary(t))
	srv := testenv.Serve(t, broker.EmbeddedConfig{
		StateDir: filepath.Join(t.TempDir(), "state"), Port: testenv.FreePort(t), Trainers: []string{"alpha", "beta"}, Workers: []string{"w1", "w2"}, Relaxed: true, Log: zerolog.Nop(),
	})
	w := newWorld(t, srv.URL(), srv.Keyring)
	at := []string{"--nats", w.url, "--keys", srv.Dir()}
	elsewhere := []string{"--nats", "nats://127.0.0.1:" + strconv.Itoa(testenv.FreePort(t)), "--keys", srv.Dir()}
	for _, kind := range []string{"trainer", "worker"} {
		contains(t, turngate.ok(t, append([]string{kind, "add", "new"}, at...)...), "in effect at once")
		m := join(t, w, role{kind, "new"})
		code, out, errOut := turngate.run(t, append([]string{kind, "rm", "new"}, elsewhere...)...)
		if code != 1 || strings.Contains(out+errOut, "shut out") {
			t.Errorf("%s rm at another address: exit status %d\n%s%s", kind, code, out, errOut)
		}
		m.stays(t)
		if code, out, _ := turngate.run(t, append([]string{kind, "rm", "new"}, at...)...); code != 1 || strings.Contains(out, "shut out") {
			t.Errorf("a second %s rm: exit status %d\n%s", kind, code, out)
		}
		m.leaves(t) // the servers were reloaded all the same
		turngate.ok(t, append([]string{kind, "add", "new"}, at...)...)
		m = join(t, w, role{kind, "new"})
		contains(t, turngate.ok(t, append([]string{kind, "rm", "new"}, at...)...), kind+" new is shut out")
		m.leaves(t)
	}
	admin := w.broker(t, role{"admin", "admin"})
	turngate.ok(t, append([]string{"trainer", "add", "alpha", "--max-queue", "7"}, at...)...)
	if s, err := admin.Trainers.Settings(t.Context(), "alpha"); err != nil || s.MaxQueue != 7 {
		t.Errorf("got %+v, %v", s, err)
	}
	contains(t, turngate.ok(t, append([]string{"trainer", "rm", "alpha"}, at...)...), "artifacts stay", "--delete-data")
	if _, err := admin.Trainers.Settings(t.Context(), "alpha"); err != nil {
		t.Errorf("its data is gone: %v", err)
	}
	contains(t, turngate.ok(t, append([]string{"trainer", "rm", "alpha", "--delete-data"}, at...)...), "are deleted", "is shut out")
	if _, err := admin.Trainers.Settings(t.Context(), "alpha"); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("its data is there: %v", err)
	}
	if code, out, _ := turngate.run(t, append([]string{"trainer", "rm", "alpha", "--delete-data"}, at...)...); code != 1 || out != "" {
		t.Errorf("nothing is left to remove: exit status %d\n%s", code, out)
	}
	if _, err := admin.Trainers.Settings(t.Context(), "beta"); err != nil {
		t.Errorf("another trainer's data is gone: %v", err)
	}
}

// TestCommandsOfANatsServer adds and removes clients of a nats-server, which reads
// its file again after a signal.
func TestCommandsOfANatsServer(t *testing.T) {
	turngate := program(testenv.Binary(t))
	keys := keyring(t, "alpha", "beta")
	port := testenv.FreePort(t)
	f := broker.ServerFile{Listen: "127.0.0.1:" + strconv.Itoa(port), Store: filepath.Join(t.TempDir(), "js")}
	cmd := startServer(t, testenv.NATSServer(t), configFile(t, keys, f, "nats.conf"))
	url := "nats://127.0.0.1:" + strconv.Itoa(port)
	awaitServer(t, url, keys.AdminCreds())
	w := newWorld(t, url, keys)
	admin := w.broker(t, role{"admin", "admin"})
	reload := func() {
		text := turngate.ok(t, "nats", "config", "--keys", keys.Dir(), "--listen", f.Listen, "--store", f.Store)
		text = strings.Replace(text, "sync_interval: always", "sync_interval: 2m", 1) // as configFile does
		harness.Must(t, os.WriteFile(filepath.Join(filepath.Dir(keys.Dir()), "nats.conf"), []byte(text), 0o600))
		harness.Must(t, cmd.Process.Signal(syscall.SIGHUP))
	}
	at := []string{"--nats", url, "--keys", keys.Dir()}
	for _, kind := range []string{"trainer", "worker"} {
		args := append([]string{kind, "add", "new"}, at...)
		if kind == "trainer" {
			args = append(args, "--max-queue", "9", "--weight", "3")
		}
		contains(t, turngate.ok(t, args...), "turngate nats config", "reload")
		reload()
		m := join(t, w, role{kind, "new"})
		code, out, errOut := turngate.run(t, append([]string{kind, "rm", "new"}, at...)...)
		if code != 1 || strings.Contains(out+errOut, "is shut out") || !strings.Contains(errOut, "turngate nats config") {
			t.Errorf("%s rm: exit status %d\n%s%s", kind, code, out, errOut)
		}
		m.stays(t)
		reload()
		m.leaves(t)
	}
	awaitServer(t, url, keys.AdminCreds()) // the reload has ended
	if s, err := admin.Trainers.Settings(t.Context(), "new"); err != nil || s.MaxQueue != 9 || s.Weight != 3 {
		t.Errorf("the settings were not applied: %+v, %v", s, err)
	}
	code, out, errOut := turngate.run(t, append([]string{"trainer", "rm", "new", "--delete-data"}, at...)...)
	if code != 1 || !strings.Contains(out, "are deleted") {
		t.Errorf("exit status %d\n%s%s", code, out, errOut)
	}
	if _, err := admin.Trainers.Settings(t.Context(), "new"); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("its data is there: %v", err)
	}
}

// TestCredentialsBelongToTheServersUser lets root add clients to the folder of a
// server with another user.
func TestCredentialsBelongToTheServersUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, since only root can give files to another user")
	}
	turngate := program(testenv.Binary(t))
	const user = 65534
	state := filepath.Join(t.TempDir(), "state")
	harness.Must(t, os.Mkdir(state, 0o700))
	harness.Must(t, os.Chown(state, user, user))
	keys := filepath.Join(state, "creds")
	turngate.ok(t, "trainer", "add", "new", "--nats", "", "--keys", keys)
	turngate.ok(t, "worker", "add", "new", "--nats", "", "--keys", keys)
	turngate.ok(t, "nats", "config", "--keys", keys, "--cluster", "n1=127.0.0.1", "--server", "n1")
	n := 0
	harness.Must(t, filepath.WalkDir(keys, func(path string, _ fs.DirEntry, err error) error {
		info, serr := os.Lstat(path)
		if err = errors.Join(err, serr); err != nil {
			return err
		}
		n++
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != user || st.Gid != user {
			t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
		}
		return nil
	}))
	if n != 8 { // the folder, five credentials, the cluster's secret in two files
		t.Errorf("%d files were made, want 8", n)
	}
}
