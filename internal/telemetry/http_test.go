package telemetry_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
)

// TestRequestsAreCountedByRouteAndClass lets a server answer, cut an answer off, hand its
// connection over and lose its client. A wrapper outside the mux counts them, too.
func TestRequestsAreCountedByRouteAndClass(t *testing.T) {
	m := telemetry.New("test")
	h, mux, waits := m.HTTP(), http.NewServeMux(), make(chan struct{}, 1)
	mux.HandleFunc("GET /things/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "none" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /cut", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "part")
		_ = http.NewResponseController(w).Flush() // a client asks again if it got nothing
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("GET /wait", func(_ http.ResponseWriter, r *http.Request) {
		defer h.StreamBegan(r)()
		waits <- struct{}{}
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /socket", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	})
	server := httptest.NewUnstartedServer(h.Serve(mux, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("refused") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r.WithContext(r.Context())) // a copy, in which alone the mux notes the pattern
	})))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	send := func(ctx context.Context, method, path string) {
		r, err := http.NewRequestWithContext(ctx, method, server.URL+path, nil)
		harness.Must(t, err)
		if a, err := server.Client().Do(r); err == nil {
			_, _ = io.Copy(io.Discard, a.Body)
			a.Body.Close()
		}
	}
	for i := range 50 {
		send(t.Context(), http.MethodGet, fmt.Sprintf("/things/%d", i))
		send(t.Context(), http.MethodPost, fmt.Sprintf("/mine-%d", i))
	}
	for _, path := range []string{"/things/none", "/things/1?refused", "/cut", "/socket"} {
		send(t.Context(), http.MethodGet, path)
	}
	raw, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	harness.Must(t, err)
	_, err = io.WriteString(raw, "CONNECT mine-host:1 HTTP/1.1\r\nHost: mine-host:1\r\nConnection: close\r\n\r\n")
	harness.Must(t, err)
	_, err = io.ReadAll(raw)
	harness.Must(t, err)
	raw.Close()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		send(ctx, http.MethodGet, "/wait")
	}()
	<-waits
	testenv.ShowsMetrics(t, m, `turngate_http_streams_open{route="GET /wait"} 1`)
	leave()
	<-left
	testenv.ShowsMetrics(t, m,
		`turngate_http_requests_total{class="2xx",route="GET /things/{id}"} 50`, `turngate_http_requests_total{class="5xx",route="GET /things/{id}"} 1`, `turngate_http_requests_total{class="4xx",route="GET /things/{id}"} 1`,
		`turngate_http_requests_total{class="4xx",route="other"} 51`, `turngate_http_requests_total{class="broken",route="GET /cut"} 1`, `turngate_http_requests_total{class="1xx",route="GET /socket"} 1`,
		`turngate_http_requests_total{class="gone",route="GET /wait"} 1`, `turngate_http_streams_open{route="GET /wait"} 0`, `turngate_http_request_seconds_count{route="GET /things/{id}"} 52`,
	)
	_, url := serve(t, m, false)
	if _, text := harness.Get(t, url+"/metrics"); strings.Contains(text, "mine") {
		t.Error("a text of a client is a label")
	}
}
