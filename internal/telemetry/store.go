package telemetry

import "github.com/prometheus/client_golang/prometheus"

// WatchStore adds the metrics of the disk with the store of a NATS server, which disk
// returns for each scrape. A size of 0 means that it is not known. Call it once.
func (m *Metrics) WatchStore(disk func() (free, size int64)) {
	m.registry.MustRegister(&storeCollector{
		disk: disk,
		free: m.desc("turngate_store_free_bytes", "gauge", "Free bytes of the disk with the store of the NATS server in this process. It is missing if the disk cannot be read."),
		size: m.desc("turngate_store_size_bytes", "gauge", "Size of that disk."),
	})
}

type storeCollector struct {
	disk       func() (free, size int64)
	free, size *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.free
	to <- c.size
}

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(to chan<- prometheus.Metric) {
	free, size := c.disk()
	if size == 0 {
		return
	}
	to <- prometheus.MustNewConstMetric(c.free, prometheus.GaugeValue, float64(free))
	to <- prometheus.MustNewConstMetric(c.size, prometheus.GaugeValue, float64(size))
}
