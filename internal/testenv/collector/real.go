package collector

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// Through starts the collector of OpenTelemetry, which install.sh builds, and makes it the one
// that receives: it sends the spans and the metrics on.
func (c *Collector) Through(t testing.TB) {
	t.Helper()
	cache, err := os.UserCacheDir()
	harness.Must(t, err)
	binary := filepath.Join(cache, "turngate", "otelcol", "otelcol")
	if _, err = os.Stat(binary); err != nil {
		err = fmt.Errorf("%w: build it with `make otelcol`", err)
	}
	testenv.Need(t, "otelcol", err)
	overGRPC, overHTTP := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	config := filepath.Join(t.TempDir(), "config.yaml")
	harness.Must(t, os.WriteFile(config, fmt.Appendf(nil, `
receivers: {otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}
exporters: {otlp_http: {endpoint: %q, compression: none, sending_queue: {enabled: false}}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [otlp_http]}, metrics: {receivers: [otlp], exporters: [otlp_http]}}
`, overGRPC, overHTTP, c.HTTP), 0o600))
	cmd := exec.CommandContext(t.Context(), binary, "--config", config)
	out, err := cmd.StderrPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	ready, ended := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(ready) })
	var said strings.Builder
	var end error
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "Everything is ready") {
				begun()
			}
		}
		end = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ready:
	case <-ended:
		t.Fatalf("the collector has ended: %v\n%s", end, said.String())
	}
	t.Cleanup(func() { <-ended }) // the context of the test has killed the process
	c.HTTP, c.GRPC = "http://"+overHTTP, "http://"+overGRPC
}
