package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/turngate/turngate/schema"
)

// Lines counts the work of a machine: its lines, each with a process at its end, and the
// operations on its desktop.
type Lines struct {
	open     *prometheus.GaugeVec
	ended    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	operated *prometheus.CounterVec
}

// Lines adds the metrics of a machine with this number of slots. Call it once.
func (m *Metrics) Lines(slots int) *Lines {
	m.gauge("turngate_machine_slots", "Lines for sandboxes and commands that the machine takes at once.").WithLabelValues().Set(float64(slots))
	return &Lines{
		open:     m.gauge("turngate_machine_lines_open", "Open lines, by kind: sandbox (of a worker), workspace (a command, a shell or a copy), desktop (one operation).", "kind"),
		ended:    m.counter("turngate_machine_lines_total", "Lines that ended, by outcome: ended, failed (the process of the line did), silent (nothing was heard for too long), closed (one side broke it off).", "kind", "outcome"),
		took:     m.seconds("turngate_machine_line_seconds", "Duration of a line.", "kind"),
		refused:  m.counter("turngate_machine_lines_refused_total", "Lines that the machine did not take, by reason: unsupported, full, draining. A client that asks again counts again.", "kind", "reason"),
		operated: m.counter("turngate_machine_desktop_operations_total", "Operations on the desktop, by outcome: done, invalid (a wrong order), consent (the owner has not allowed input), display (it failed).", "operation", "outcome"),
	}
}

// LineBegan records a line for a capability. The caller calls ended with the reason for an
// early end, or none; failed tells that the process of the line failed.
func (l *Lines) LineBegan(want string) (ended func(reason string, failed bool)) {
	if l == nil {
		return func(string, bool) {}
	}
	kind, began := lineKind(want), time.Now()
	open := l.open.WithLabelValues(kind)
	open.Inc()
	return func(reason string, failed bool) {
		open.Dec()
		outcome := "ended"
		switch {
		case reason == schema.LineSilent:
			outcome = "silent"
		case reason != "": // the process is then killed, and did not fail by itself
			outcome = "closed"
		case failed:
			outcome = "failed"
		}
		l.ended.WithLabelValues(kind, outcome).Inc()
		l.took.WithLabelValues(kind).Observe(time.Since(began).Seconds())
	}
}

// LineRefused records a line that was not taken.
func (l *Lines) LineRefused(want, reason string) {
	if l == nil {
		return
	}
	switch reason {
	case schema.LineUnsupported, schema.LineFull, schema.LineDraining:
	default:
		reason = other
	}
	l.refused.WithLabelValues(lineKind(want), reason).Inc()
}

// lineKind returns a capability as a label: a client may ask for any.
func lineKind(want string) string {
	switch want {
	case schema.CanSandbox, schema.CanWorkspace, schema.CanDesktop:
		return want
	}
	return other
}

// Operated records an operation on the desktop. The code is that of its error; none: it
// was carried out.
func (l *Lines) Operated(operation, code string) {
	if l == nil {
		return
	}
	switch operation {
	case "screenshot", "move", "click", "drag", "type", "key", "scroll":
	default:
		operation = other
	}
	switch code {
	case "":
		code = "done"
	case "invalid", "consent", "display":
	default:
		code = other
	}
	l.operated.WithLabelValues(operation, code).Inc()
}
