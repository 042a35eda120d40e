package telemetry

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Waiting are the requests of one trainer in one lane.
type Waiting struct {
	Trainer string    // empty: requests that any worker may take without a trainer's queue
	Lane    string    // p0 to p3
	Queued  uint64    // no worker has taken them
	Taken   uint64    // a worker has taken them and they have not ended
	Oldest  time.Time // when the oldest queued request was stored; zero: none is queued, or Ageless
	Ageless bool      // the server did not answer with the oldest request
	Delayed uint64    // parked until their delay is over
	Unfit   uint64    // parked, since no worker that looked could run them
}

// Backlog is the content of all queues at one moment.
type Backlog struct {
	Lanes []Waiting
	Dead  uint64 // requests that no worker could read
}

const (
	// maxTrainers bounds the values of the label trainer. Trainers beyond it, in the order
	// of their names, are shown together as "*", which no trainer is named.
	maxTrainers = 100
	// backlogAge is the time for which a backlog is shown again without reading it.
	backlogAge = 5 * time.Second
	// backlogWithin bounds the time to read the backlog.
	backlogWithin = 8 * time.Second
)

// WatchBacklog adds the metrics of the queues. A scrape calls read, but not more often
// than every 5 s. Call WatchBacklog once.
func (m *Metrics) WatchBacklog(read func(context.Context) (Backlog, error)) {
	m.registry.MustRegister(&backlogCollector{
		read:   read,
		up:     m.desc("turngate_queue_up", "gauge", "1 if the queues could be read; the other metrics of queues are missing otherwise."),
		queued: m.desc("turngate_queue_depth", "gauge", "Requests that no worker has taken, without parked ones.", "trainer", "lane"),
		taken:  m.desc("turngate_queue_taken", "gauge", "Requests that a worker has taken and that have not ended.", "trainer", "lane"),
		oldest: m.desc("turngate_queue_oldest_seconds", "gauge", "Age of the oldest request that no worker has taken; 0: there is none. It is missing if the server does not answer in time, as for a removed trainer: the credential may not read its requests. It is asked for again after 3 minutes.", "trainer", "lane"),
		parked: m.desc("turngate_queue_parked", "gauge", "Requests that are parked: delay (until their time), needs (no worker that looked can run them).", "trainer", "lane", "reason"),
		dead:   m.desc("turngate_dead_requests", "gauge", "Requests that no worker could read: turngate dead ls."),
	})
}

type backlogCollector struct {
	read                                    func(context.Context) (Backlog, error)
	up, queued, taken, oldest, parked, dead *prometheus.Desc

	mu   sync.Mutex // held while the backlog is read
	last Backlog
	err  error
	at   time.Time // zero: not read yet
}

// Describe implements prometheus.Collector.
func (c *backlogCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.queued, c.taken, c.oldest, c.parked, c.dead} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *backlogCollector) Collect(to chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, n float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	now, err := c.now()
	if err != nil {
		put(c.up, 0)
		return
	}
	put(c.up, 1)
	put(c.dead, float64(now.Dead))
	for _, w := range now.Lanes {
		switch {
		case w.Oldest.IsZero() && !w.Ageless:
			put(c.oldest, 0, w.Trainer, w.Lane)
		case !w.Oldest.IsZero():
			put(c.oldest, max(time.Since(w.Oldest), 0).Seconds(), w.Trainer, w.Lane)
		}
		put(c.queued, float64(w.Queued), w.Trainer, w.Lane)
		put(c.taken, float64(w.Taken), w.Trainer, w.Lane)
		put(c.parked, float64(w.Delayed), w.Trainer, w.Lane, "delay")
		put(c.parked, float64(w.Unfit), w.Trainer, w.Lane, "needs")
	}
}

// now returns the backlog. Scrapes at the same time read it once.
func (c *backlogCollector) now() (Backlog, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || time.Since(c.at) >= backlogAge {
		ctx, cancel := context.WithTimeout(context.Background(), backlogWithin)
		defer cancel()
		c.last, c.err = c.read(ctx)
		c.last.Lanes = bounded(c.last.Lanes)
		c.at = time.Now()
	}
	return c.last, c.err
}

// bounded joins the lanes of trainers beyond maxTrainers.
func bounded(all []Waiting) []Waiting {
	slices.SortStableFunc(all, func(a, b Waiting) int { return cmp.Or(cmp.Compare(a.Trainer, b.Trainer), cmp.Compare(a.Lane, b.Lane)) })
	var out []Waiting
	rest := map[string]int{} // places in out, by lane
	trainers, last := 0, ""  // the plain lane, which is the first, is no trainer
	for _, w := range all {
		if w.Trainer != last {
			trainers++
			last = w.Trainer
		}
		if trainers <= maxTrainers {
			out = append(out, w)
			continue
		}
		w.Trainer = "*"
		at, ok := rest[w.Lane]
		if !ok {
			rest[w.Lane] = len(out)
			out = append(out, w)
			continue
		}
		sum := &out[at]
		sum.Queued += w.Queued
		sum.Taken += w.Taken
		sum.Delayed += w.Delayed
		sum.Unfit += w.Unfit
		sum.Ageless = sum.Ageless || w.Ageless
		if sum.Oldest.IsZero() || !w.Oldest.IsZero() && w.Oldest.Before(sum.Oldest) {
			sum.Oldest = w.Oldest
		}
	}
	return out
}
