package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/turngate/turngate/schema"
)

// Rollouts counts the work of a worker's rollouts.
type Rollouts struct {
	phases                 *prometheus.HistogramVec
	failedPhases           *prometheus.CounterVec
	created                *prometheus.CounterVec
	sandboxes              *prometheus.GaugeVec
	calls, tools, verifies endings
	open                   prometheus.Gauge
	waiting                *prometheus.GaugeVec
	waited                 prometheus.Observer
	tokens                 *prometheus.CounterVec
	received, sent, kept   prometheus.Counter
}

// endings are the count and the duration of one kind of calls.
type endings struct {
	count *prometheus.CounterVec
	took  prometheus.Observer
}

func (e *endings) ended(took time.Duration, f *schema.Fault) {
	e.endedAs(outcomeOf(f), took, f)
}

func outcomeOf(f *schema.Fault) string {
	if f != nil {
		return "failed"
	}
	return "answered"
}

func (e *endings) endedAs(outcome string, took time.Duration, f *schema.Fault) {
	e.count.WithLabelValues(outcome, faultLabel(f)).Inc()
	e.took.Observe(took.Seconds())
}

// Rollouts adds the metrics of rollouts. Call it once.
func (m *Metrics) Rollouts() *Rollouts {
	calls := m.seconds("turngate_model_call_seconds", "Duration of a model call: part wait, while the trainer or the upstream is absent or holds the call or all slots of the session are taken, and part answer, the rest. A call that ends while it waits for a slot has no part answer.", "part")
	return &Rollouts{
		calls:    endings{m.counter("turngate_model_calls_total", "Model calls that ended, by outcome (answered, failed) and code of the fault.", "outcome", "fault"), calls.WithLabelValues("answer")},
		waited:   calls.WithLabelValues("wait"),
		open:     m.gauge("turngate_model_calls_open", "Model calls that have no answer yet.").WithLabelValues(),
		waiting:  m.gauge("turngate_model_calls_waiting", "Model calls that wait now, by reason: trainer, upstream (it is absent), hold (its trainer pauses it), slot (of the session).", "for"),
		tokens:   m.counter("turngate_model_tokens_total", "Tokens of answered model calls as the trainer counts them: prompt, cached (a part of prompt), completion. One answer adds 2^31 at most.", "kind"),
		tools:    endings{m.counter("turngate_tool_calls_total", "Calls of trainers' tools that ended, by outcome: answered, error (of the tool itself), failed (no answer).", "outcome", "fault"), m.seconds("turngate_tool_call_seconds", "Duration of a call of a trainer's tool.").WithLabelValues()},
		verifies: endings{m.counter("turngate_verify_calls_total", "Verifications by trainers that ended.", "outcome", "fault"), m.seconds("turngate_verify_call_seconds", "Duration of a verification by a trainer.").WithLabelValues()},
		received: m.counter("turngate_gate_received_bytes_total", "Bytes of bodies that agents sent to the gate.").WithLabelValues(),
		sent:     m.counter("turngate_gate_sent_bytes_total", "Bytes of bodies that the gate sent to agents.").WithLabelValues(),

		phases:       m.seconds("turngate_phase_seconds", "Duration of a phase of a rollout.", "phase"),
		failedPhases: m.counter("turngate_phases_failed_total", "Phases that ended with a fault.", "phase", "fault"),
		created:      m.counter("turngate_sandboxes_created_total", "Sandboxes that were asked for, by outcome: created, refused (the backend cannot do it, or its image cannot be used), cancelled (its rollout was stopped), failed.", "backend", "outcome"),
		sandboxes:    m.gauge("turngate_sandboxes", "Sandboxes that exist. One that could not be removed counts until its worker ends.", "backend"),
		kept:         m.counter("turngate_transcript_bytes_total", "Compressed bytes of transcripts.").WithLabelValues(),
	}
}

// PhaseEnded records the end of a phase.
func (r *Rollouts) PhaseEnded(name string, took time.Duration, f *schema.Fault) {
	if r == nil {
		return
	}
	phase := PhaseKind(name)
	r.phases.WithLabelValues(phase).Observe(took.Seconds())
	if f != nil {
		r.failedPhases.WithLabelValues(phase, faultLabel(f)).Inc()
	}
}

// SandboxOutcome is the outcome of a sandbox that was asked for.
type SandboxOutcome string

// Outcomes of sandboxes.
const (
	SandboxCreated   SandboxOutcome = "created"
	SandboxRefused   SandboxOutcome = "refused"   // the backend cannot do it, or its image cannot be used
	SandboxCancelled SandboxOutcome = "cancelled" // its rollout was stopped
	SandboxFailed    SandboxOutcome = "failed"
)

// SandboxMade records the outcome of a sandbox that a backend was asked for.
func (r *Rollouts) SandboxMade(backend string, o SandboxOutcome) {
	if r == nil {
		return
	}
	r.created.WithLabelValues(backend, string(o)).Inc()
	if o == SandboxCreated {
		r.sandboxes.WithLabelValues(backend).Inc()
	}
}

// SandboxClosed records that a sandbox is gone.
func (r *Rollouts) SandboxClosed(backend string) {
	if r != nil {
		r.sandboxes.WithLabelValues(backend).Dec()
	}
}

// ToolEnded records the end of a call of a trainer's tool. isError tells that the tool
// ran and its answer is an error.
func (r *Rollouts) ToolEnded(took time.Duration, isError bool, f *schema.Fault) {
	switch {
	case r == nil:
	case isError:
		r.tools.endedAs("error", took, f)
	default:
		r.tools.ended(took, f)
	}
}

// VerifyEnded records the end of a verification by a trainer.
func (r *Rollouts) VerifyEnded(took time.Duration, f *schema.Fault) {
	if r != nil {
		r.verifies.ended(took, f)
	}
}

// Carried records the bytes of one exchange with an agent.
func (r *Rollouts) Carried(received, sent int64) {
	if r != nil {
		r.received.Add(float64(received))
		r.sent.Add(float64(sent))
	}
}

// TranscriptMade records a transcript of this size.
func (r *Rollouts) TranscriptMade(bytes int) {
	if r != nil {
		r.kept.Add(float64(bytes))
	}
}

// maxTokens bounds the tokens that one answer adds to a counter: a trainer may name any
// number.
const maxTokens = 1 << 31

// addTokens adds the tokens of an answer to a counter with the label kind.
func addTokens(to *prometheus.CounterVec, u *schema.Usage) {
	for _, t := range []struct {
		kind string
		n    int64
	}{{"prompt", u.PromptTokens}, {"cached", u.CachedTokens}, {"completion", u.CompletionTokens}} {
		if t.n > 0 {
			to.WithLabelValues(t.kind).Add(float64(min(t.n, maxTokens)))
		}
	}
}
