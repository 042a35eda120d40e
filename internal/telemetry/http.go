package telemetry

import (
	"cmp"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// HTTP counts the requests of one HTTP server.
type HTTP struct {
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	streams  *prometheus.GaugeVec
}

// HTTP adds the metrics of an HTTP server. Call it once.
func (m *Metrics) HTTP() *HTTP {
	return &HTTP{
		requests: m.counter("turngate_http_requests_total", "HTTP requests that ended, by route and class of the status: 1xx (a WebSocket) to 5xx, broken (the answer was cut off), gone (the client left before the answer). A request that fits no route has the route other.", "route", "class"),
		took:     m.seconds("turngate_http_request_seconds", "Duration of an HTTP request; of a stream until its end.", "route"),
		streams:  m.gauge("turngate_http_streams_open", "Open requests that may last: WebSockets, server-sent events, long polls, downloads of serve.", "route"),
	}
}

// Serve counts the requests that next answers, by the patterns of mux.
func (h *HTTP) Serve(mux *http.ServeMux, next http.Handler) http.Handler {
	if h == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route := other
		if r.Method != http.MethodConnect { // the pattern of a redirect of CONNECT is the client's path
			_, pattern := mux.Handler(r)
			route = cmp.Or(pattern, other)
		}
		began, answer, whole := time.Now(), &answer{ResponseWriter: w}, false
		defer func() {
			class := answer.class()
			switch {
			case !whole: // by a panic
				class = "broken"
			case answer.status == 0 && r.Context().Err() != nil:
				class = "gone"
			}
			h.requests.WithLabelValues(route, class).Inc()
			h.took.WithLabelValues(route).Observe(time.Since(began).Seconds())
		}()
		next.ServeHTTP(answer, r)
		whole = true
	})
}

// StreamBegan records a request that may last. The caller calls ended at its end.
func (h *HTTP) StreamBegan(r *http.Request) (ended func()) {
	if h == nil {
		return func() {}
	}
	open := h.streams.WithLabelValues(cmp.Or(r.Pattern, other))
	open.Inc()
	return open.Dec
}

// answer notes the status of an answer.
type answer struct {
	http.ResponseWriter
	status int // 0: it has not begun
}

func (a *answer) WriteHeader(status int) {
	if a.status < 200 && a.status != http.StatusSwitchingProtocols {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.status = cmp.Or(a.status, http.StatusOK)
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// class returns the class of the status, such as 2xx. net/http answers 200 for a handler
// that wrote nothing.
func (a *answer) class() string { return strconv.Itoa(cmp.Or(a.status, http.StatusOK)/100) + "xx" }
