// Package telemetry has the metrics of a process, for Prometheus, and the HTTP server
// that shows them with the health of the process. The methods that record something
// do nothing on a nil receiver, so a process without metrics passes nil. Values of
// labels are from lists of turngate: a text of a trainer or an agent is never one.
package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
)

// Metrics are the metrics of one process.
type Metrics struct {
	registry *prometheus.Registry
	list     []Metric
}

// Metric describes a metric of turngate.
type Metric struct {
	Name   string
	Type   string // counter, gauge or histogram
	Labels []string
	Help   string
}

// New returns metrics with the version, and with the metrics of the Go runtime and of the
// process.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.gauge("turngate_build_info", "1, with the version of the program.", "version").WithLabelValues(version).Set(1)
	return m
}

// List describes the metrics of turngate in the order in which they were made.
func (m *Metrics) List() []Metric { return m.list }

// Gather implements prometheus.Gatherer.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

func (m *Metrics) add(name, kind, help string, labels []string) {
	m.list = append(m.list, Metric{Name: name, Type: kind, Labels: labels, Help: help})
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	m.add(name, "counter", help, labels)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	m.add(name, "gauge", help, labels)
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

// seconds makes a histogram of durations. Its buckets reach from a call of a tool to
// the run of an agent.
func (m *Metrics) seconds(name, help string, labels ...string) *prometheus.HistogramVec {
	m.add(name, "histogram", help, labels)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 14400}}, labels)
	m.registry.MustRegister(v)
	return v
}

// desc describes a metric that a collector reads when it is asked for.
func (m *Metrics) desc(name, kind, help string, labels ...string) *prometheus.Desc {
	m.add(name, kind, help, labels)
	return prometheus.NewDesc(name, help, labels, nil)
}
