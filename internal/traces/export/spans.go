package export

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/internal/traces"
)

// maxMessage bounds the texts of the spans of one message, in bytes. Collectors refuse
// messages of gRPC above 4 MiB, with all their spans.
const maxMessage = 2 << 20

// startSpans starts the export of spans.
func (e *Export) startSpans(ctx context.Context, protocol string, of *resource.Resource) error {
	if err := checkSampler(); err != nil {
		return err
	}
	exporter, err := otlptrace.New(ctx, spanClient(protocol))
	if err != nil {
		return fmt.Errorf("export traces: %w", err)
	}
	e.spans = sdk.NewTracerProvider(sdk.WithResource(of), sdk.WithIDGenerator(ids{}), sdk.WithBatcher(&quietSpans{SpanExporter: exporter, log: e.log}))
	return nil
}

// checkSampler checks the variables that the SDK would replace by their defaults.
func checkSampler() error {
	samplers := []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
	sampler := strings.ToLower(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER")))
	if sampler != "" && !slices.Contains(samplers, sampler) {
		return fmt.Errorf("OTEL_TRACES_SAMPLER: %q is not valid: want one of %s", sampler, strings.Join(samplers, ", "))
	}
	if arg := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG")); strings.HasSuffix(sampler, "traceidratio") && arg != "" {
		if ratio, err := strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG: %q is not valid: want a ratio from 0 to 1, such as 0.1", arg)
		}
	}
	return nil
}

// spanClient returns the client of a protocol. It reads the other variables itself.
func spanClient(protocol string) otlptrace.Client {
	if protocol == overGRPC {
		return otlptracegrpc.NewClient()
	}
	return otlptracehttp.NewClient()
}

// quietSpans sends spans in messages that are not too large, and logs the failures of an
// exporter: while its collector is away, not each one.
type quietSpans struct {
	sdk.SpanExporter
	log   zerolog.Logger
	lines quiet.Lines
}

// ExportSpans implements sdk.SpanExporter.
func (q *quietSpans) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	for len(spans) > 0 {
		n := fitting(spans)
		if err := q.SpanExporter.ExportSpans(ctx, spans[:n]); err != nil {
			if skipped, speak := q.lines.Speak(err.Error(), time.Now()); speak {
				q.log.Warn().Err(err).Int("spans", n).Int("repeated", skipped).Msg("spans were not sent and are lost")
			}
		}
		spans = spans[n:]
	}
	return nil // the SDK would write it to stderr
}

// fitting returns the number of spans, from the first, that have texts of at most
// maxMessage bytes together, but at least 1.
func fitting(spans []sdk.ReadOnlySpan) int {
	total := 0
	for i, s := range spans {
		for _, a := range s.Attributes() {
			if a.Value.Type() == attribute.STRING {
				total += len(a.Value.AsString())
			}
		}
		if total > maxMessage && i > 0 {
			return i
		}
	}
	return len(spans)
}

// ids makes the ids of spans: the ids that traces chose, or random ones.
type ids struct{}

// NewIDs implements sdk.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	t, s, ok := traces.Chosen(ctx)
	if !ok || !t.IsValid() {
		_, _ = rand.Read(t[:]) // never fails
	}
	if !ok {
		_, _ = rand.Read(s[:])
	}
	return t, s
}

// NewSpanID implements sdk.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, s, ok := traces.Chosen(ctx)
	if !ok {
		_, _ = rand.Read(s[:])
	}
	return s
}
