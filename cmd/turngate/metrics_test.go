package main_test

import (
	"bufio"
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

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
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
}
