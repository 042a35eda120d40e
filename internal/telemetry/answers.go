package telemetry

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/turngate/turngate/schema"
)

// Answers counts the model calls that a process answers.
type Answers struct {
	calls  endings
	open   prometheus.Gauge
	tokens *prometheus.CounterVec
}

// Answers adds the metrics of a process that answers model calls. Call it once.
func (m *Metrics) Answers() *Answers {
	return &Answers{
		calls:  endings{m.counter("turngate_answers_total", "Model calls that the source of answers ended, by outcome: answered, failed (with the code of the fault), unwanted (the worker gave the call up).", "outcome", "fault"), m.seconds("turngate_answer_seconds", "Duration of an answer, from when the source of answers got the call.").WithLabelValues()},
		open:   m.gauge("turngate_answers_open", "Model calls that the source of answers has now.").WithLabelValues(),
		tokens: m.counter("turngate_answer_tokens_total", "Tokens of answered calls as the source of answers counts them: prompt, cached (a part of prompt), completion. One answer adds 2^31 at most.", "kind"),
	}
}

// Began records that the source of answers got a call. The context is that of the call. The
// caller calls ended with the answer or the error.
func (a *Answers) Began(ctx context.Context) (ended func(*schema.Reply, error)) {
	if a == nil {
		return func(*schema.Reply, error) {}
	}
	a.open.Inc()
	began := time.Now()
	return func(reply *schema.Reply, err error) {
		a.open.Dec()
		took := time.Since(began)
		var f *schema.Fault
		var invalid *schema.InvalidError
		switch {
		case ctx.Err() != nil:
			a.calls.endedAs("unwanted", took, nil)
			return
		case errors.As(err, &invalid):
			f = &schema.Fault{Code: schema.CodeBadAnswer}
		case err != nil && !errors.As(err, &f):
			f = &schema.Fault{Code: schema.CodeInternal}
		}
		a.calls.ended(took, f)
		if f == nil {
			addTokens(a.tokens, &reply.Usage)
		}
	}
}
