// Package export sends the spans and the metrics of a process to a collector with OTLP. The
// standard variables of OpenTelemetry configure it.
package export

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/turngate/turngate/internal/traces"
)

// endWithin bounds the time in which the last spans and metrics are sent.
const endWithin = 5 * time.Second

// Export sends the spans and the metrics of a process. A nil Export has none.
type Export struct {
	spans   *sdktrace.TracerProvider // nil: none are sent
	metrics *sdkmetric.MeterProvider // nil: none are sent
	calls   *traces.CallMetrics      // nil: no metrics are sent
	log     zerolog.Logger
}

// FromEnv returns the Export that the variables of OpenTelemetry ask for; nil: none. It
// does not wait for the collector. An error names the variable, its value and a valid one.
func FromEnv(ctx context.Context, instance, version string, log zerolog.Logger) (*Export, error) {
	spanProtocol, err := spans.protocol()
	if err != nil {
		return nil, err
	}
	metricProtocol, err := metrics.protocol()
	if err != nil || spanProtocol == "" && metricProtocol == "" {
		return nil, err
	}
	// The variables come later, so they replace these.
	of, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "turngate"), attribute.String("service.instance.id", instance), attribute.String("service.version", version),
	), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w: want a list such as deployment.environment.name=lab,team=a", err)
	}
	e := &Export{log: log}
	if spanProtocol != "" {
		err = e.startSpans(ctx, spanProtocol, of)
	}
	if err == nil && metricProtocol != "" {
		err = e.startMetrics(ctx, metricProtocol, of)
	}
	if err != nil {
		e.Close() //nolint:contextcheck // it has a limit of its own
		return nil, err
	}
	return e, nil
}

// Tracer returns the Tracer of a worker; nil: no spans are sent.
func (e *Export) Tracer(worker string) *traces.Tracer {
	if e == nil || e.spans == nil {
		return nil
	}
	return traces.New(e.spans, worker)
}

// CallMetrics returns the metrics of model calls; nil: no metrics are sent.
func (e *Export) CallMetrics() *traces.CallMetrics {
	if e == nil {
		return nil
	}
	return e.calls
}

// Close sends the spans and metrics that are left, for a few seconds at most.
func (e *Export) Close() {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	var ending sync.WaitGroup
	if e.spans != nil {
		ending.Go(func() { e.end(ctx, e.spans.Shutdown, "the last spans may not have been sent") })
	}
	if e.metrics != nil {
		ending.Go(func() { e.end(ctx, e.metrics.Shutdown, "the last metrics may not have been sent") })
	}
	ending.Wait()
}

func (e *Export) end(ctx context.Context, shutdown func(context.Context) error, failed string) {
	if err := shutdown(ctx); err != nil && !errors.Is(err, sdkmetric.ErrReaderShutdown) { // which a second Close gets
		e.log.Warn().Err(err).Msg(failed)
	}
}
