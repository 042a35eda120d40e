package front

import (
	"testing"

	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
)

// TestAFrontCountsItsRequests: those of trainers, of strangers and of probes, and an open
// WebSocket.
func TestAFrontCountsItsRequests(t *testing.T) {
	b, m := newBench(t), telemetry.New("test")
	b.url, _ = b.startCounted(m.HTTP())
	b.call("GET", "/v1/rollouts", nil, 200, nil)
	b.call("GET", "/v1/rollouts/alpha-1", nil, 404, nil)
	b.do(b.request("GET", "/v1/rollouts", "wrong", nil), 401, nil)
	b.call("GET", "/v2/rollouts", nil, 404, nil)
	b.call("GET", "/readyz", nil, 200, nil)
	h := b.hand(alphaToken, "")
	testenv.ShowsMetrics(t, m, `turngate_http_streams_open{route="GET /v1/calls"} 1`)
	h.conn.CloseNow()
	testenv.ShowsMetrics(t, m,
		`turngate_http_requests_total{class="2xx",route="GET /v1/rollouts"} 1`, `turngate_http_requests_total{class="4xx",route="GET /v1/rollouts"} 1`, `turngate_http_requests_total{class="4xx",route="GET /v1/rollouts/{id}"} 1`,
		`turngate_http_requests_total{class="4xx",route="other"} 1`, `turngate_http_requests_total{class="2xx",route="GET /readyz"} 1`,
		`turngate_http_requests_total{class="1xx",route="GET /v1/calls"} 1`, `turngate_http_streams_open{route="GET /v1/calls"} 0`, `turngate_http_request_seconds_count{route="GET /v1/rollouts"} 2`,
	)
}
