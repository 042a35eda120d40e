package collector

import (
	"context"
	"slices"
	"sync"

	metricservicepb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
)

// metrics receives metrics.
type metrics struct {
	metricservicepb.UnimplementedMetricsServiceServer

	mu     sync.Mutex
	points []Point
}

// Point is a series of a metric, with its values since the process began.
type Point struct {
	Metric, Unit string
	Of           map[string]any // attributes, as a Span has them
	Resource     map[string]any
	Sum          float64 // of a counter, or of the values of a histogram
	Exemplars    int     // spans that it names

	// Of a histogram: the number of values, the upper bounds of its buckets, and the
	// values in each of them and above the last one.
	Count   uint64
	Bounds  []float64
	Buckets []uint64
}

// Export implements metricservicepb.MetricsServiceServer.
func (m *metrics) Export(_ context.Context, q *metricservicepb.ExportMetricsServiceRequest) (*metricservicepb.ExportMetricsServiceResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.points = nil // a message has all series
	for _, r := range q.ResourceMetrics {
		for _, scope := range r.ScopeMetrics {
			for _, metric := range scope.Metrics {
				m.points = append(m.points, pointsOf(metric, r.Resource.Attributes)...)
			}
		}
	}
	return &metricservicepb.ExportMetricsServiceResponse{}, nil
}

func pointsOf(m *metricspb.Metric, resource []*commonpb.KeyValue) []Point {
	var all []Point
	for _, p := range m.GetHistogram().GetDataPoints() {
		all = append(all, Point{Metric: m.Name, Unit: m.Unit, Of: values(p.Attributes), Resource: values(resource), Sum: p.GetSum(), Exemplars: len(p.Exemplars), Count: p.Count, Bounds: p.ExplicitBounds, Buckets: p.BucketCounts})
	}
	for _, p := range m.GetSum().GetDataPoints() {
		all = append(all, Point{Metric: m.Name, Unit: m.Unit, Of: values(p.Attributes), Resource: values(resource), Sum: float64(p.GetAsInt()), Exemplars: len(p.Exemplars)})
	}
	return all
}

// Points returns the series of a metric that the last message had; with an empty name, of all
// metrics.
func (c *Collector) Points(metric string) []Point {
	c.metrics.mu.Lock()
	defer c.metrics.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.metrics.points), func(p Point) bool { return metric != "" && p.Metric != metric })
}
