package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/turngate/turngate/schema"
)

// End is the way in which an attempt ended at its worker.
type End string

// Ends of attempts.
const (
	EndResult   End = "result"   // its result was offered to the queue
	EndReturned End = "returned" // the worker stopped, and the try is not counted
	EndBroken   End = "broken"   // the sandbox or the worker broke, and the try is counted
	EndFenced   End = "fenced"   // another attempt has the rollout
	EndUntold   End = "untold"   // the server could not be reached until the worker stopped
)

// Queue counts the decisions of one worker about rollouts.
type Queue struct {
	results   *prometheus.CounterVec
	begun     *prometheus.CounterVec
	ends      *prometheus.CounterVec
	parked    *prometheus.CounterVec
	takeovers prometheus.Counter
	unrenewed prometheus.Counter
	started   prometheus.Observer
}

// Queue adds the metrics of a worker's part of the queue. Call it once.
func (m *Metrics) Queue() *Queue {
	return &Queue{
		results:   m.counter("turngate_rollouts_total", "Rollouts whose end this worker stored, by status and code of the fault; without a fault the label is empty.", "status", "fault"),
		begun:     m.counter("turngate_attempts_total", "Attempts that began here: first, or again after another attempt.", "attempt"),
		ends:      m.counter("turngate_attempts_ended_total", "Attempts that ended here: result, returned (the worker stops), broken (the try counts), fenced (another attempt has the rollout), untold (the server was out of reach).", "end"),
		takeovers: m.counter("turngate_takeovers_total", "Rollouts that this worker took over after the lease of another had lapsed.").WithLabelValues(),
		started:   m.seconds("turngate_rollout_schedule_to_start_seconds", "Time from when a request was stored in its queue until its first attempt began. For a request that was parked (needs) it begins when it was moved. A request with a delay is left out.").WithLabelValues(),
		parked:    m.counter("turngate_requests_parked_total", "Requests that this worker moved to a class: delay (it must wait), needs (this worker cannot run it).", "reason"),
		unrenewed: m.counter("turngate_lease_renewals_failed_total", "Renewals of the worker's lease that failed.").WithLabelValues(),
	}
}

// RolloutEnded records that the end of a rollout was stored.
func (q *Queue) RolloutEnded(s schema.Status, f *schema.Fault) {
	if q == nil {
		return
	}
	status := other
	if s.Terminal() {
		status = string(s)
	}
	q.results.WithLabelValues(status, faultLabel(f)).Inc()
}

// AttemptBegan records an attempt by its number.
func (q *Queue) AttemptBegan(attempt int) {
	switch {
	case q == nil:
	case attempt > 1:
		q.begun.WithLabelValues("again").Inc()
	default:
		q.begun.WithLabelValues("first").Inc()
	}
}

// Started records the time that a request was in its queue.
func (q *Queue) Started(waited time.Duration) {
	if q != nil {
		q.started.Observe(max(waited, 0).Seconds())
	}
}

// AttemptEnded records the end of an attempt.
func (q *Queue) AttemptEnded(e End) {
	if q != nil {
		q.ends.WithLabelValues(string(e)).Inc()
	}
}

// TookOver records a rollout that its worker has lost.
func (q *Queue) TookOver() {
	if q != nil {
		q.takeovers.Inc()
	}
}

// Parked records a request that was moved to a class.
func (q *Queue) Parked(delay bool) {
	switch {
	case q == nil:
	case delay:
		q.parked.WithLabelValues("delay").Inc()
	default:
		q.parked.WithLabelValues("needs").Inc()
	}
}

// LeaseFailed records a renewal of the lease that failed.
func (q *Queue) LeaseFailed() {
	if q != nil {
		q.unrenewed.Inc()
	}
}
