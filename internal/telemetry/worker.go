package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Worker is the present state of a worker.
type Worker struct {
	Slots, Busy int
	// Suspended tells that the busy slots stand still, since the lease is not renewed.
	Suspended bool
	Ready     bool
	Holds     int // trainers that hold all or some of their rollouts

	BundleBytes                int64 // of the cache of bundles
	BundlesFound, BundlesAdded int64 // opens of a bundle that was in the cache, and that was not
}

// WatchWorker adds the metrics of a worker, which now returns for each scrape. Call it
// once.
func (m *Metrics) WatchWorker(now func() Worker) {
	m.registry.MustRegister(&workerCollector{
		now:   now,
		slots: m.desc("turngate_worker_slots", "gauge", "Slots of the worker by state: free, busy, suspended (busy, but its rollout stands still, since the lease is not renewed).", "state"),
		ready: m.desc("turngate_worker_ready", "gauge", "1 if the worker can take rollouts, as /readyz tells."),
		holds: m.desc("turngate_worker_holds", "gauge", "Trainers that hold all or some of their rollouts, as this worker knows."),
		bytes: m.desc("turngate_bundle_cache_bytes", "gauge", "Bytes of the unpacked bundles on disk."),
		opens: m.desc("turngate_bundle_cache_opens_total", "counter", "Bundles that rollouts opened: hit (it was on disk), miss.", "result"),
	})
}

type workerCollector struct {
	now                               func() Worker
	slots, ready, holds, bytes, opens *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *workerCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.slots, c.ready, c.holds, c.bytes, c.opens} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *workerCollector) Collect(to chan<- prometheus.Metric) {
	w := c.now()
	put := func(d *prometheus.Desc, kind prometheus.ValueType, n int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
	}
	busy, suspended, ready := w.Busy, 0, 0
	if w.Suspended {
		busy, suspended = 0, w.Busy
	}
	if w.Ready {
		ready = 1
	}
	put(c.slots, prometheus.GaugeValue, int64(w.Slots-w.Busy), "free")
	put(c.slots, prometheus.GaugeValue, int64(busy), "busy")
	put(c.slots, prometheus.GaugeValue, int64(suspended), "suspended")
	put(c.ready, prometheus.GaugeValue, int64(ready))
	put(c.holds, prometheus.GaugeValue, int64(w.Holds))
	put(c.bytes, prometheus.GaugeValue, w.BundleBytes)
	put(c.opens, prometheus.CounterValue, w.BundlesFound, "hit")
	put(c.opens, prometheus.CounterValue, w.BundlesAdded, "miss")
}
