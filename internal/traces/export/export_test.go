package export_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/collector"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/internal/traces/export"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestVariables checks which variables turn the export on, and the errors for wrong ones.
func TestVariables(t *testing.T) {
	for _, c := range []struct {
		set            string // NAME=VALUE, separated by blanks
		spans, metrics bool
		err            string // empty: none
	}{
		{"", false, false, ""},
		{"OTEL_SERVICE_NAME=x", false, false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", true, true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1/v1/traces", true, false, ""},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:1/v1/metrics", false, true, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, false, ""},
		{"OTEL_METRICS_EXPORTER=otlp", false, true, ""},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", false, true, ""},
		{"OTEL_METRICS_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", true, false, ""},
		{"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", false, false, ""},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.1", true, false, ""},
		{"OTEL_METRICS_EXPORTER=otlp OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf OTEL_METRIC_EXPORT_INTERVAL=1000", false, true, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, false, `OTEL_TRACES_EXPORTER: "zipkin" is not valid: want otlp or none`},
		{"OTEL_METRICS_EXPORTER=prometheus OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", true, false, ""},
		{"OTEL_METRICS_EXPORTER=oltp", false, false, `OTEL_METRICS_EXPORTER: "oltp" is not valid: want otlp or none`},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=127.0.0.1:4317", false, false, `OTEL_EXPORTER_OTLP_ENDPOINT: "127.0.0.1:4317" is not valid: want a URL such as http://127.0.0.1:4318`},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json", false, false, `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: "http/json" is not valid: want grpc or http/protobuf`},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/json", false, false, `OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: "http/json" is not valid: want grpc or http/protobuf`},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=some", false, false, `OTEL_TRACES_SAMPLER: "some" is not valid: want one of always_on,`},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", false, false, `OTEL_TRACES_SAMPLER_ARG: "2" is not valid: want a ratio from 0 to 1, such as 0.1`},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1 OTEL_METRIC_EXPORT_INTERVAL=10s", false, false, `OTEL_METRIC_EXPORT_INTERVAL: "10s" is not valid: want milliseconds, such as 60000`},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_RESOURCE_ATTRIBUTES=x", false, false, "want a list such as"},
	} {
		t.Run(c.set, func(t *testing.T) {
			for _, pair := range strings.Fields(c.set) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			e, err := export.FromEnv(t.Context(), "w1", "test", zerolog.Nop())
			e.Close()
			if spans, metrics := e.Tracer("w1") != nil, e.CallMetrics() != nil; spans != c.spans || metrics != c.metrics || (e != nil) != (spans || metrics) {
				t.Errorf("spans %v, metrics %v", spans, metrics)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// exporting returns the Export that sends to a collector with a protocol.
func exporting(t *testing.T, c *collector.Collector, protocol string) *export.Export {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", map[string]string{"grpc": c.GRPC, "http/protobuf": c.HTTP}[protocol])
	e, err := export.FromEnv(t.Context(), "w1", "test", zerolog.New(zerolog.NewTestWriter(t)))
	harness.Must(t, err)
	return e
}

// TestMetricsOfCalls measures two calls of one model, and compares all that a collector gets
// with the conventions.
func TestMetricsOfCalls(t *testing.T) {
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			c := collector.Start(t)
			e := exporting(t, c, protocol)
			m := e.CallMetrics()
			m.Ended(t.Context(), traces.Call{Model: "m", Took: 300 * time.Millisecond, FirstChunk: 15 * time.Millisecond, Usage: schema.Usage{PromptTokens: 5, CompletionTokens: math.MaxInt64, CachedTokens: 3}})
			m.Ended(t.Context(), traces.Call{Model: "m", Took: 100 * time.Second, Fault: &schema.Fault{Code: "timeout"}})
			e.Close()
			call := map[string]any{"gen_ai.operation.name": "chat", "gen_ai.provider.name": "turngate", "gen_ai.request.model": "m"}
			failed, tokens := maps.Clone(call), maps.Clone(call)
			failed["error.type"], tokens["gen_ai.token.modality"] = "timeout", "unknown"
			bounds := []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
			in := func(bucket int) []uint64 { // the only value is in this one
				all := make([]uint64, len(bounds)+1)
				all[bucket] = 1
				return all
			}
			want := []collector.Point{
				{Metric: "gen_ai.client.inference.duration", Unit: "s", Of: call, Sum: 0.3, Count: 1, Bounds: bounds, Buckets: in(5)},
				{Metric: "gen_ai.client.inference.duration", Unit: "s", Of: failed, Sum: 100, Count: 1, Bounds: bounds, Buckets: in(14)},
				{Metric: "gen_ai.client.inference.time_to_first_chunk", Unit: "s", Of: call, Sum: 0.015, Count: 1, Bounds: bounds, Buckets: in(1)},
				{Metric: "gen_ai.client.inference.usage.cache_read.input_tokens", Unit: "{token}", Of: tokens, Sum: 3},
				{Metric: "gen_ai.client.inference.usage.input_tokens", Unit: "{token}", Of: tokens, Sum: 5},
				{Metric: "gen_ai.client.inference.usage.output_tokens", Unit: "{token}", Of: tokens, Sum: 1 << 31},
			}
			got := c.Points("")
			slices.SortFunc(got, func(a, b collector.Point) int {
				return cmp.Or(cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Sum, b.Sum))
			})
			for i := range got {
				got[i].Resource = nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

// TestSeriesAreBounded measures calls of more models than a metric has series, with the
// longest names. All calls are counted, in a message that a collector takes.
func TestSeriesAreBounded(t *testing.T) {
	c := collector.Start(t)
	e := exporting(t, c, "grpc")
	const models, most = 2000, 500
	q := schema.Request{ID: "alpha-1", Trainer: "alpha"}
	ctx, _ := e.Tracer("w1").Begin(t.Context(), traces.Subject{Request: &q, Stored: time.Now()}, 1, 1)
	ctx, span := traces.Start(ctx, "chat") // it is sampled
	defer span.End()
	for range 2 {
		for i := range models {
			e.CallMetrics().Ended(ctx, traces.Call{Model: fmt.Sprintf("%0200d", i), Took: time.Second, FirstChunk: time.Second, Usage: schema.Usage{PromptTokens: 1, CompletionTokens: 1, CachedTokens: 1}})
		}
	}
	e.Close()
	series, total, over := map[string]int{}, map[string]float64{}, map[string]float64{}
	for _, p := range c.Points("") {
		series[p.Metric]++
		total[p.Metric] += p.Sum
		if p.Exemplars > 0 {
			t.Fatalf("a series of %s names %d spans", p.Metric, p.Exemplars)
		}
		if p.Of["otel.metric.overflow"] == true {
			over[p.Metric] += p.Sum
		}
	}
	if len(series) != 5 {
		t.Errorf("%d metrics came", len(series))
	}
	for metric, n := range series {
		if n != most || total[metric] != 2*models || over[metric] != 2*(models-most+1) {
			t.Errorf("%s has %d series with %v together, of which %v are over the bound", metric, n, total[metric], over[metric])
		}
	}
}

// TestSpansWithLongTexts checks that spans arrive even if their texts have more bytes together
// than a collector takes in one message.
func TestSpansWithLongTexts(t *testing.T) {
	c := collector.Start(t)
	e := exporting(t, c, "grpc")
	q := schema.Request{ID: "alpha-1", Trainer: "alpha"}
	ctx, _ := e.Tracer("w1").Begin(t.Context(), traces.Subject{Request: &q, Stored: time.Now()}, 1, 1)
	const spans, size = 12, 512 << 10
	for range spans {
		_, span := traces.Start(ctx, "chat", trace.WithAttributes(traces.InputMessages.String(strings.Repeat("x", size))))
		span.End()
	}
	e.Close()
	all := c.Spans()
	for _, s := range all {
		if text, _ := s.Of[string(traces.InputMessages)].(string); len(text) != size {
			t.Errorf("%s has a text of %d bytes", s.Name, len(text))
		}
	}
	if len(all) != spans {
		t.Errorf("%d spans arrived", len(all))
	}
}
