package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Reasons for which a worker takes no rollout, though it has free slots.
const (
	FullDisk    = "disk"    // too little of it is free
	FullMemory  = "memory"  // too little of it is free
	FullAuto    = "auto"    // its slots are as many as its host carries, and it carries no more
	FullProcess = "process" // an earlier process of the worker has all slots
)

// Space is a part of a host that rollouts use up, in bytes. Without a Size it is not known.
type Space struct {
	Size, Free int64
	Keep       int64 // free, for the worker to take a rollout
}

// Worker is the present state of a worker.
type Worker struct {
	Slots, Busy int
	// Suspended tells that the busy slots stand still, since the lease is not renewed.
	Suspended bool
	Ready     bool
	Holds     int // trainers that hold all or some of their rollouts

	Full   string // one of the reasons above; empty: none
	Memory Space  // of the host
	Disk   Space  // with the worker's state

	Failing map[string]bool // by backend that the worker has: true: its service makes no sandboxes now

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
		full:  m.desc("turngate_worker_full", "gauge", "1 if the worker takes no rollout because of its host, by reason: disk, memory (less of it is free than --keep-free-disk-mb or --keep-free-memory-mb), auto (with --slots auto: the running rollouts need the memory or the CPUs), process (an earlier process of the worker has all slots).", "reason"),
		free:  m.desc("turngate_worker_free_bytes", "gauge", "Bytes that are free, of: memory (of the host or the worker's control group), disk (with --state). One that cannot be read is missing.", "of"),
		keep:  m.desc("turngate_worker_keep_free_bytes", "gauge", "Bytes that must be free for the worker to take a rollout, of: memory, disk.", "of"),
		fails: m.desc("turngate_backend_failing", "gauge", "1 if the service of a backend makes no sandboxes: the worker offers them to no request until a check succeeds.", "backend"),
		bytes: m.desc("turngate_bundle_cache_bytes", "gauge", "Bytes of the unpacked bundles on disk."),
		opens: m.desc("turngate_bundle_cache_opens_total", "counter", "Bundles that rollouts opened: hit (it was on disk), miss.", "result"),
	})
}

type workerCollector struct {
	now                 func() Worker
	slots, ready, holds *prometheus.Desc
	full, free, keep    *prometheus.Desc
	fails, bytes, opens *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *workerCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.slots, c.ready, c.holds, c.full, c.free, c.keep, c.fails, c.bytes, c.opens} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *workerCollector) Collect(to chan<- prometheus.Metric) {
	w := c.now()
	put := func(d *prometheus.Desc, kind prometheus.ValueType, n int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
	}
	is := func(d *prometheus.Desc, yes bool, labels ...string) {
		n := int64(0)
		if yes {
			n = 1
		}
		put(d, prometheus.GaugeValue, n, labels...)
	}
	busy, suspended := w.Busy, 0
	if w.Suspended {
		busy, suspended = 0, w.Busy
	}
	put(c.slots, prometheus.GaugeValue, int64(w.Slots-w.Busy), "free")
	put(c.slots, prometheus.GaugeValue, int64(busy), "busy")
	put(c.slots, prometheus.GaugeValue, int64(suspended), "suspended")
	is(c.ready, w.Ready)
	put(c.holds, prometheus.GaugeValue, int64(w.Holds))
	for _, reason := range []string{FullDisk, FullMemory, FullAuto, FullProcess} {
		is(c.full, w.Full == reason, reason)
	}
	for of, s := range map[string]Space{"memory": w.Memory, "disk": w.Disk} {
		if s.Size > 0 {
			put(c.free, prometheus.GaugeValue, s.Free, of)
			put(c.keep, prometheus.GaugeValue, s.Keep, of)
		}
	}
	for backend, fails := range w.Failing {
		is(c.fails, fails, backend)
	}
	put(c.bytes, prometheus.GaugeValue, w.BundleBytes)
	put(c.opens, prometheus.CounterValue, w.BundlesFound, "hit")
	put(c.opens, prometheus.CounterValue, w.BundlesAdded, "miss")
}
