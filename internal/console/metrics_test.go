package console_test

import (
	"net/http"
	"testing"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
)

// TestAConsoleCountsItsRequests: those of an admitted browser, of a stranger, and an open
// feed.
func TestAConsoleCountsItsRequests(t *testing.T) {
	m, s := telemetry.New("test"), &site{}
	s.run(t, console.Config{Source: &console.Folder{Dir: t.TempDir()}, HTTP: m.HTTP()})
	c := s.browser(t)
	if code, _ := get(t, http.DefaultClient, s.base+"/api/rollouts", nil); code != http.StatusUnauthorized {
		t.Errorf("a stranger got %d", code)
	}
	events, stop := s.feed(t, c, "/api/rollouts", "")
	<-events
	testenv.ShowsMetrics(t, m, `turngate_http_streams_open{route="GET /api/rollouts"} 1`)
	stop()
	testenv.ShowsMetrics(t, m,
		`turngate_http_requests_total{class="2xx",route="GET /{$}"} 1`, `turngate_http_requests_total{class="4xx",route="GET /api/rollouts"} 1`,
		`turngate_http_requests_total{class="2xx",route="GET /api/rollouts"} 1`, `turngate_http_streams_open{route="GET /api/rollouts"} 0`,
	)
}
