package testenv

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
)

// ShowsMetrics serves metrics, and waits for each of these lines in their text. A line
// without a value may have any.
func ShowsMetrics(t testing.TB, m *telemetry.Metrics, lines ...string) {
	t.Helper()
	s, err := telemetry.Listen(telemetry.Config{Address: "127.0.0.1:0", Metrics: m, Log: zerolog.Nop()})
	harness.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		harness.Must(t, <-done)
		http.DefaultClient.CloseIdleConnections()
	}()
	for _, line := range lines {
		harness.Eventually(t, line, 5*time.Minute, func() bool {
			_, text := harness.Get(t, "http://"+s.Address()+"/metrics")
			return strings.Contains(text, "\n"+line+"\n") || strings.Contains(text, "\n"+line+" ")
		})
	}
}
