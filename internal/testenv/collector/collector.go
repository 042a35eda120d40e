// Package collector is a collector of OpenTelemetry for tests.
package collector

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	metricservicepb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/turngate/turngate/internal/harness"
)

// Collector receives spans and metrics with OTLP over HTTP and gRPC.
type Collector struct {
	collectorpb.UnimplementedTraceServiceServer
	HTTP, GRPC string // URLs

	metrics metrics
	mu      sync.Mutex
	spans   []Span
}

// Span is a span that a Collector has received.
type Span struct {
	*tracepb.Span
	Trace, ID, Parent string         // in hex
	Of                map[string]any // attributes: a string, an int64, a float64, a bool or a list
	Resource          map[string]any
}

// Start starts a Collector for the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	web := httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(web.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(t, err)
	s := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(s, c)
	metricservicepb.RegisterMetricsServiceServer(s, &c.metrics)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // a test that ends at once stops it before it serves
			harness.Must(t, err)
		}
	})
	c.HTTP, c.GRPC = web.URL, "http://"+l.Addr().String()
	return c
}

// Export implements collectorpb.TraceServiceServer.
func (c *Collector) Export(_ context.Context, q *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range q.ResourceSpans {
		for _, scope := range r.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{s, hex.EncodeToString(s.TraceId), hex.EncodeToString(s.SpanId), hex.EncodeToString(s.ParentSpanId), values(s.Attributes), values(r.Resource.Attributes)})
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// receive takes a message over HTTP.
func (c *Collector) receive(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch r.URL.Path {
	case "/v1/traces":
		var q collectorpb.ExportTraceServiceRequest
		if err = proto.Unmarshal(data, &q); err == nil {
			_, err = c.Export(r.Context(), &q)
		}
	case "/v1/metrics":
		var q metricservicepb.ExportMetricsServiceRequest
		if err = proto.Unmarshal(data, &q); err == nil {
			_, err = c.metrics.Export(r.Context(), &q)
		}
	default:
		err = errors.New("want /v1/traces or /v1/metrics")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// Spans returns the spans that have come so far, in the order of their begins.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.spans)
	slices.SortStableFunc(all, func(a, b Span) int { return int(a.StartTimeUnixNano) - int(b.StartTimeUnixNano) })
	return all
}

func values(all []*commonpb.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range all {
		out[kv.Key] = value(kv.Value)
	}
	return out
}

func value(v *commonpb.AnyValue) any {
	switch v := v.Value.(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_IntValue:
		return v.IntValue
	case *commonpb.AnyValue_DoubleValue:
		return v.DoubleValue
	case *commonpb.AnyValue_BoolValue:
		return v.BoolValue
	case *commonpb.AnyValue_ArrayValue:
		var list []any
		for _, x := range v.ArrayValue.Values {
			list = append(list, value(x))
		}
		return list
	}
	return nil
}
