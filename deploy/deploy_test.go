package deploy_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestUnits checks the units with systemd-analyze, with the built binary in place
// of the installed one.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	testenv.Need(t, "systemd", err)
	binary := testenv.Binary(t)
	units, err := filepath.Glob(filepath.Join(testenv.Root(t), "deploy", "systemd", "*.service"))
	harness.Must(t, err)
	if len(units) != 3 {
		t.Fatalf("%d units were found, want 3", len(units))
	}
	dir := t.TempDir()
	verify := func(file string) (string, error) {
		out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for _, unit := range units {
		t.Run(filepath.Base(unit), func(t *testing.T) {
			data, err := os.ReadFile(unit)
			harness.Must(t, err)
			text := strings.NewReplacer("/usr/local/bin/turngate", binary, "/usr/local/bin/nats-server", binary).Replace(string(data))
			file := filepath.Join(dir, filepath.Base(unit))
			harness.Must(t, os.WriteFile(file, []byte(text), 0o600))
			if out, err := verify(file); err != nil || out != "" {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
			harness.Must(t, os.WriteFile(file, []byte(text+"\n[Service]\nProtectSysten=strict\n"), 0o600))
			if out, _ := verify(file); !strings.Contains(out, "ProtectSysten") {
				t.Errorf("the check overlooks an unknown setting: %q", out)
			}
		})
	}
}

// TestImages builds the images on the base that this machine has, and runs a
// rollout with them: a worker in a container starts a sandbox on the engine, and
// `turngate run` in a container without a system submits the task.
func TestImages(t *testing.T) {
	testenv.Slow(t)
	base := testenv.Image(t)
	root, files := testenv.Root(t), built(t)
	main, bare, worker := build(t, files, "Dockerfile", base), build(t, files, "Dockerfile.scratch", base), build(t, files, "Dockerfile.worker", base)
	if out := run(t, main, "version"); out == "" {
		t.Error("the image does not run turngate")
	}

	srv := testenv.StartNATS(t, "local")
	// The engine must see the state at the same path, and root of the container
	// owns it.
	state := t.TempDir()
	t.Cleanup(func() { // root of the container owns these files
		_ = exec.Command("docker", "run", "--rm", "-v", state+":/state", "--entrypoint", "/bin/sh", worker, "-c", "rm -rf /state/*").Run()
	})
	start(t, worker, []string{
		"--network", "host", "-v", "/var/run/docker.sock:/var/run/docker.sock", "-v", state + ":" + state, "-e", "TURNGATE_STATE=" + state,
		"-v", srv.AdmitWorker(t, "shipped") + ":/run/secrets/worker-shipped.nk:ro",
	}, "--nats", srv.URL(), "--creds", "/run/secrets/worker-shipped.nk", "--sandboxes", "docker", "--slots", "1")

	creds := filepath.Join(t.TempDir(), "local.nk")
	seed, err := os.ReadFile(srv.TrainerCreds("local"))
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(creds, seed, 0o644)) //nolint:gosec // the image's user must read it
	out := run(t, bare, "run", "--nats", srv.URL(), "--creds", "/run/secrets/nats.nk", "--name", "local", "--sandbox", "docker", "--image", base, "--agent", "oracle", "--out", "/tmp/job", "-o", "json", "/task",
		"--", "--network", "host", "-v", creds+":/run/secrets/nats.nk:ro", "-v", filepath.Join(root, "examples", "tasks", "hello")+":/task:ro")
	var results []schema.Result
	harness.Must(t, json.Unmarshal([]byte(out), &results))
	if len(results) != 1 || results[0].Reward == nil || *results[0].Reward != 1 || results[0].Worker != "shipped" {
		t.Errorf("got %s", out)
	}
}

// built copies the folder deploy and the binary, as they are after `make build`.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	harness.Must(t, os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(filepath.Join(testenv.Root(t), "deploy"))))
	harness.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	harness.Must(t, exec.Command("cp", testenv.Binary(t), filepath.Join(dir, "bin", "turngate")).Run())
	return dir
}

// fresh returns a word that no other test has.
func fresh() string {
	id := make([]byte, 6)
	_, _ = rand.Read(id)
	return hex.EncodeToString(id)
}

func build(t *testing.T, dir, file, base string) string {
	t.Helper()
	image := "turngate-test-deploy:" + fresh()
	out, err := exec.Command("docker", "build", "-q", "-f", filepath.Join(dir, "deploy", "docker", file), "--build-arg", "BASE="+base, "-t", image, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("docker build %s: %v\n%s", file, err, out)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", image).Run() })
	return image
}

// run runs a container to its end and returns its output. Arguments after -- are
// the engine's.
func run(t *testing.T, image string, args ...string) string {
	t.Helper()
	argv := []string{"run", "--rm"}
	for i, a := range args {
		if a == "--" {
			argv = append(argv, args[i+1:]...)
			args = args[:i]
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", append(append(argv, image), args...)...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("docker run %s %v: %v\n%s\n%s", image, args, err, &out, &said)
	}
	return out.String()
}

// start runs a container until the test ends.
func start(t *testing.T, image string, engine []string, args ...string) {
	t.Helper()
	argv := append(append(append([]string{"run", "-d"}, engine...), image), args...)
	out, err := exec.Command("docker", argv...).Output()
	harness.Must(t, err)
	id := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := exec.Command("docker", "logs", id).CombinedOutput()
			t.Logf("%s", logs)
		}
		_ = exec.Command("docker", "stop", "-t", "20", id).Run()
		_ = exec.Command("docker", "rm", "-f", id).Run()
	})
}

// TestOneServer makes the files of one server and starts it.
func TestOneServer(t *testing.T) {
	dir, nats := t.TempDir(), testenv.NATSServer(t)
	port := testenv.FreePort(t)
	script(t, dir, "one", []string{fmt.Sprintf("LISTEN=127.0.0.1:%d", port), "STORE=" + filepath.Join(dir, "js")}, dir, "alpha,beta", "w1")
	serve(t, nats, filepath.Join(dir, "nats.conf"))
	works(t, dir, 1, fmt.Sprintf("nats://127.0.0.1:%d", port))
}

// TestThreeServers makes the files of three servers, starts them, and lets one of
// them die.
func TestThreeServers(t *testing.T) {
	testenv.Slow(t)
	dir, nats := t.TempDir(), testenv.NATSServer(t)
	var clients, hosts, env []string
	for i := range 3 {
		port := testenv.FreePort(t)
		env = append(env, fmt.Sprintf("LISTEN_n%d=127.0.0.1:%d", i+1, port))
		clients = append(clients, fmt.Sprintf("nats://127.0.0.1:%d", port))
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)))
	}
	script(t, dir, "three", append(env, "STORE="+filepath.Join(dir, "js")), dir, strings.Join(hosts, ","), "alpha,beta", "w1")
	var last natsProcess
	for i := range 3 {
		last = serve(t, nats, filepath.Join(dir, fmt.Sprintf("n%d.conf", i+1)))
	}
	works(t, dir, 3, clients...)
	last.stop()
	works(t, dir, 3, clients[:2]...)
	secret, err := os.ReadFile(filepath.Join(dir, "creds", "cluster.secret"))
	harness.Must(t, err)
	seed := regexp.MustCompile(`\bSU[A-Z2-7]{56}\b`)
	for i := range 3 {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("n%d.conf", i+1)))
		harness.Must(t, err)
		if bytes.Contains(text, secret) || seed.Match(text) {
			t.Errorf("n%d.conf has a secret", i+1)
		}
	}
}

func script(t *testing.T, dir, name string, env []string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(testenv.Root(t), "deploy", "nats", name), args...)
	cmd.Env, cmd.Dir = append(append(os.Environ(), "TURNGATE="+testenv.Binary(t)), env...), dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("deploy/nats/%s: %v\n%s", name, err, out)
	}
}

// natsProcess is a running nats-server.
type natsProcess struct {
	log  *harness.Buffer
	stop func() // SIGKILL
}

// serve starts a server, which must not end before the test stops it.
func serve(t *testing.T, nats, file string) natsProcess {
	t.Helper()
	log := &harness.Buffer{}
	cmd := exec.Command(nats, "-c", file)
	cmd.Stdout, cmd.Stderr = log, log
	harness.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	stop := sync.OnceFunc(func() {
		select {
		case <-ended:
			t.Errorf("the server of %s ended by itself: %v", file, cmd.ProcessState)
		default:
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			said := log.String()
			t.Logf("%s\n%s", file, said[max(0, len(said)-3000):])
		}
	})
	return natsProcess{log, stop}
}

// works sets the streams up and lets a trainer submit, with the credentials in
// dir.
func works(t *testing.T, dir string, replicas int, urls ...string) {
	t.Helper()
	keys, err := broker.OpenKeyring(filepath.Join(dir, "creds"))
	harness.Must(t, err)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, errors.New("the servers did not serve a trainer within 3 minutes"))
	defer cancel()
	dial := func(role, name, creds string) *broker.Broker {
		for {
			b, err := broker.Dial(ctx, broker.Config{URL: strings.Join(urls, ","), Creds: creds, Inbox: broker.InboxFor(role, name), Log: zerolog.New(zerolog.NewTestWriter(t))})
			if err == nil {
				t.Cleanup(b.Close)
				return b
			}
			select {
			case <-ctx.Done():
				t.Fatal(context.Cause(ctx), err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	w := dial("worker", "w1", keys.WorkerCreds("w1"))
	// A request that is sent before the cluster has a leader is never answered.
	again := func(do func(context.Context) error) {
		for {
			try, cancel := context.WithTimeout(ctx, 10*time.Second)
			err := do(try)
			cancel()
			if err == nil {
				return
			}
			t.Log(err)
			select {
			case <-ctx.Done():
				t.Fatal(context.Cause(ctx), err)
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	again(func(ctx context.Context) error { return w.Streams.Setup(ctx, broker.StreamsConfig{Replicas: replicas}) })
	again(func(ctx context.Context) error { // the streams elect new leaders
		_, err := w.Trainers.Open(ctx, "alpha")
		return err
	})
	side, err := queue.NewTrainer(dial("trainer", "alpha", keys.TrainerCreds("alpha")), "alpha")
	harness.Must(t, err)
	r := harness.Request(schema.ID("alpha-" + hex.EncodeToString([]byte(t.Name()))[:12]))
	if _, err := side.Submit(ctx, 2, []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
}
