package export

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/internal/traces"
)

// maxSeries bounds the series of a metric. Each message has all series, and collectors refuse
// messages of gRPC above 4 MiB.
const maxSeries = 500

// startMetrics starts the export of metrics.
func (e *Export) startMetrics(ctx context.Context, protocol string, of *resource.Resource) error {
	if err := checkInterval(); err != nil {
		return err
	}
	exporter, err := metricExporter(ctx, protocol)
	if err != nil {
		return fmt.Errorf("export metrics: %w", err)
	}
	reader := sdk.NewPeriodicReader(&quietMetrics{Exporter: exporter, log: e.log})
	e.metrics = sdk.NewMeterProvider(
		sdk.WithResource(of), sdk.WithReader(reader), sdk.WithCardinalityLimit(maxSeries),
		sdk.WithExemplarFilter(exemplar.AlwaysOffFilter), // they would make messages larger, by the number of processors
	)
	if e.calls, err = traces.NewCallMetrics(e.metrics); err != nil {
		return fmt.Errorf("export metrics: %w", err)
	}
	return nil
}

// checkInterval checks the variable that the SDK would replace by its default.
func checkInterval() error {
	const name = "OTEL_METRIC_EXPORT_INTERVAL"
	if value := os.Getenv(name); value != "" {
		if ms, err := strconv.Atoi(value); err != nil || ms <= 0 {
			return fmt.Errorf("%s: %q is not valid: want milliseconds, such as 60000", name, value)
		}
	}
	return nil
}

// metricExporter returns the exporter of a protocol. It reads the other variables itself.
func metricExporter(ctx context.Context, protocol string) (sdk.Exporter, error) {
	if protocol == overGRPC {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}

// quietMetrics logs the failures of an exporter: while its collector is away, not each one.
type quietMetrics struct {
	sdk.Exporter
	log   zerolog.Logger
	lines quiet.Lines
}

// Export implements sdk.Exporter.
func (q *quietMetrics) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	if err := q.Exporter.Export(ctx, m); err != nil {
		if skipped, speak := q.lines.Speak(err.Error(), time.Now()); speak {
			q.log.Warn().Err(err).Int("repeated", skipped).Msg("metrics were not sent: for a collector that takes none set OTEL_METRICS_EXPORTER=none")
		}
	}
	return nil // the SDK would write it to stderr
}
