package main_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// started runs a command until the test ends and returns the URL of its metrics, once
// it has logged ready.
func started(t *testing.T, binary, ready string, args ...string) (url string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	stderr, err := cmd.StderrPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	var log strings.Builder
	for lines.Scan() {
		log.WriteString(lines.Text() + "\n")
		if m := regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`).FindString(lines.Text()); m != "" {
			url = strings.TrimSuffix(m, "/metrics")
		}
		if url != "" && strings.Contains(log.String(), ready) {
			break
		}
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, stderr)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-rest
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", args[0], err, log.String())
		}
	})
	if url == "" {
		t.Fatalf("%s tells no URL:\n%s", args[0], log.String())
	}
	return url
}

// TestProcessesShowTheirMetrics starts a server, a worker and a process for the queues,
// and asks each for its health and metrics.
func TestProcessesShowTheirMetrics(t *testing.T) {
	binary, dir, port := testenv.Binary(t), t.TempDir(), strconv.Itoa(testenv.FreePort(t))
	nats, creds := "nats://127.0.0.1:"+port, func(name string) string { return filepath.Join(dir, "creds", name+".nk") }
	server := started(t, binary, "NATS is ready", "nats", "--state", dir, "--port", port, "--workers", "w1", "--metrics", "127.0.0.1:0")
	worker := started(t, binary, "worker is ready", "worker", "--nats", nats, "--creds", creds("worker-w1"), "--state", t.TempDir(), "--sandboxes", "local", "--metrics", "127.0.0.1:0", "--pprof")
	queues := started(t, binary, "metrics are served", "metrics", "--nats", nats, "--creds", creds("ops"), "--listen", "127.0.0.1:0")
	for url, series := range map[string]string{server: "turngate_queue_up 1\n", queues: "turngate_queue_up 1\n", worker: `turngate_worker_slots{state="free"} 2` + "\n"} {
		harness.Eventually(t, url+"/readyz", 5*time.Minute, func() bool {
			status, _ := harness.Get(t, url+"/readyz")
			return status == http.StatusOK
		})
		if status, text := harness.Get(t, url+"/livez"); status != http.StatusOK {
			t.Errorf("/livez: %d %s", status, text)
		}
		harness.Eventually(t, series, 5*time.Minute, func() bool {
			_, text := harness.Get(t, url+"/metrics")
			return strings.Contains(text, series) && strings.Contains(text, "\ngo_goroutines ")
		})
		if status, _ := harness.Get(t, url+"/debug/pprof/"); (status == http.StatusOK) != (url == worker) {
			t.Errorf("/debug/pprof: %d", status)
		}
	}
	for url, names := range map[string][]string{
		server: {"turngate_store_free_bytes", "turngate_store_size_bytes"},
		worker: {`turngate_worker_free_bytes{of="disk"}`, `turngate_worker_free_bytes{of="memory"}`, `turngate_worker_keep_free_bytes{of="disk"}`, `turngate_worker_full{reason="disk"}`, `turngate_backend_failing{backend="local"}`},
	} {
		_, text := harness.Get(t, url+"/metrics")
		for _, name := range names {
			if !strings.Contains(text, "\n"+name+" ") {
				t.Errorf("no %s of the real host", name)
			}
		}
	}
}

// TestServicesShowTheirMetrics starts a front, consoles, a trainer and a machine, gives each
// something to do, and asks for their metrics, and for their health without NATS, too.
func TestServicesShowTheirMetrics(t *testing.T) {
	testenv.Slow(t)
	pool, binary := testenv.StartPool(t), testenv.Binary(t) // its worker gives the trainer its shard
	n := pool.Server
	harness.Must(t, n.AddMachine("m1", ""))
	harness.Must(t, n.Reload())
	front, page := "127.0.0.1:"+strconv.Itoa(testenv.FreePort(t)), "127.0.0.1:"+strconv.Itoa(testenv.FreePort(t))
	sum := sha256.Sum256([]byte("token"))
	files := task(t, map[string]string{"replay.yaml": done, "tokens.yaml": fmt.Sprintf("- {trainer: alpha, sha256: %x, creds: %q}\n", sum, n.TrainerCreds("alpha"))})
	service := func(ready string, args ...string) string {
		return started(t, binary, ready, append(args, "--metrics", "127.0.0.1:0")...)
	}
	serve := service("serving trainers", "serve", "--nats", n.URL(), "--tokens", filepath.Join(files, "tokens.yaml"), "--listen", front, "--pprof")
	console := service("metrics are served", "console", "--nats", n.URL(), "--creds", n.OpsCreds(), "--listen", page)
	folder := service("metrics are served", "console", "--listen", "127.0.0.1:0", files)
	trainer := service("answering model calls", "trainer", "serve", "--nats", n.URL(), "--creds", n.TrainerCreds("alpha"), "--name", "alpha", "--trainer", "replay:"+filepath.Join(files, "replay.yaml"))
	machine := service("the machine is ready", "machine", "serve", "--nats", n.URL(), "--creds", n.MachineCreds("m1"), "--state", t.TempDir(), "--workspace", t.TempDir(), "--unconfined")
	all := []string{serve, console, folder, trainer, machine}
	health := func(of []string, want int) {
		t.Helper()
		for _, url := range of {
			harness.Eventually(t, fmt.Sprintf("%s/readyz: %d", url, want), 5*time.Minute, func() bool {
				status, _ := harness.Get(t, url+"/readyz")
				return status == want
			})
			if status, text := harness.Get(t, url+"/livez"); status != http.StatusOK {
				t.Errorf("/livez: %d %s", status, text)
			}
		}
	}
	health(all, http.StatusOK)
	if status, _ := harness.Get(t, serve+"/debug/pprof/"); status != http.StatusOK {
		t.Errorf("/debug/pprof: %d", status)
	}

	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+front+"/v1/workers", nil)
	harness.Must(t, err)
	q.Header.Set("Authorization", "Bearer token")
	a, err := http.DefaultClient.Do(q)
	harness.Must(t, err)
	a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("the front answers %s", a.Status)
	}
	harness.Get(t, "http://"+page+"/workers")
	client, err := modelcall.NewClient(pool.Broker, "w1", "i1")
	harness.Must(t, err)
	defer client.Close()
	call := schema.Call{V: schema.Version, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 1}.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}
	_, err = testenv.Complete(t.Context(), client.Caller(harness.Request("alpha-1").WithDefaults(), nil), call, func(schema.Frame) error { return nil })
	harness.Must(t, err)
	if got := turngate(t, binary, "machine", "exec", "--nats", n.URL(), "--creds", n.AdminCreds(), "m1", "--", "true"); got.code != 0 {
		t.Fatalf("machine exec: %+v", got)
	}
	for _, want := range []struct{ url, series string }{
		{serve, `turngate_http_requests_total{class="2xx",route="GET /v1/workers"} 1`},
		{console, `turngate_http_requests_total{class="4xx",route="GET /workers"} 1`}, // this client was not admitted
		{trainer, `turngate_answers_total{fault="",outcome="answered"} 1`}, {trainer, "turngate_answer_seconds_count 1"}, {trainer, "turngate_answers_open 0"},
		{machine, `turngate_machine_lines_total{kind="workspace",outcome="ended"} 1`}, {machine, `turngate_machine_lines_open{kind="workspace"} 0`},
	} {
		harness.Eventually(t, want.series, 5*time.Minute, func() bool {
			_, text := harness.Get(t, want.url+"/metrics")
			return strings.Contains(text, "\n"+want.series+"\n")
		})
	}

	n.Shutdown()
	health([]string{serve, console, trainer, machine}, http.StatusServiceUnavailable)
	health([]string{folder}, http.StatusOK)
	testenv.Serve(t, pool.Config)
	health(all, http.StatusOK)
}

// TestATrainerIsReadyWithItsShard: without a worker it has none and waits, and a second
// process of the shard ends.
func TestATrainerIsReadyWithItsShard(t *testing.T) {
	pool, binary := testenv.StartPool(t), testenv.Binary(t)
	pool.Leave()
	args := []string{"trainer", "serve", "--nats", pool.Server.URL(), "--creds", pool.Server.TrainerCreds("alpha"), "--name", "alpha", "--trainer", "replay:" + filepath.Join(task(t, map[string]string{"replay.yaml": done}), "replay.yaml"), "--metrics", "127.0.0.1:0"}
	url := started(t, binary, "answering model calls", args...)
	readiness := func(want int, says string) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("/readyz: %d, %s", want, says), 5*time.Minute, func() bool {
			status, text := harness.Get(t, url+"/readyz")
			return status == want && strings.Contains(text, says)
		})
	}
	readiness(http.StatusServiceUnavailable, "it does not have the calls of shard 0 of trainer alpha")
	pool.NewWorker(t, "w2")
	readiness(http.StatusOK, "ready")
	if got := turngate(t, binary, args...); got.code != 1 || !strings.Contains(got.errOut, "shard 0 of trainer alpha is in use by turngate, process ") {
		t.Errorf("a second process: %+v", got)
	}
}
