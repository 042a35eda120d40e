package traces

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/turngate/turngate/schema"
)

// CallMetrics measures the model calls of a worker. A nil CallMetrics measures none.
type CallMetrics struct {
	duration, firstChunk  metric.Float64Histogram
	input, output, cached metric.Int64Counter
}

// NewCallMetrics returns the CallMetrics of a worker. The provider must bound the series of
// a metric, since agents choose the names of models.
func NewCallMetrics(p metric.MeterProvider) (*CallMetrics, error) {
	var m CallMetrics
	var errs [5]error
	meter, seconds, tokens := p.Meter(scope), metric.WithUnit("s"), metric.WithUnit("{token}")
	buckets := metric.WithExplicitBucketBoundaries(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
	m.duration, errs[0] = meter.Float64Histogram(callDuration, seconds, buckets, metric.WithDescription("Duration of a model call, with its waits."))
	m.firstChunk, errs[1] = meter.Float64Histogram(callFirstChunk, seconds, buckets, metric.WithDescription("Time from the begin of a streamed model call to the first piece of its answer."))
	m.input, errs[2] = meter.Int64Counter(callInputTokens, tokens, metric.WithDescription("Tokens of prompts, also the cached ones."))
	m.output, errs[3] = meter.Int64Counter(callOutputTokens, tokens, metric.WithDescription("Tokens of answers."))
	m.cached, errs[4] = meter.Int64Counter(callCachedTokens, tokens, metric.WithDescription("Tokens of prompts that the model server had cached."))
	return &m, errors.Join(errs[:]...)
}

// Call is a model call that has ended.
type Call struct {
	Model      string        // its name, as in the span of the call
	Took       time.Duration // as long as the span of the call
	FirstChunk time.Duration // until the first piece of its answer; 0: it was no stream, or none came
	Usage      schema.Usage  // zero: not known
	Fault      *schema.Fault // nil: it was answered
}

// maxTokens bounds the tokens that one call adds to a counter: a trainer may name any number.
const maxTokens = 1 << 31

// Ended measures a call.
func (m *CallMetrics) Ended(ctx context.Context, c Call) {
	if m == nil {
		return
	}
	of := []attribute.KeyValue{Operation.String("chat"), Provider.String("turngate"), RequestModel.String(c.Model)}
	call := metric.WithAttributes(of...)
	if c.FirstChunk > 0 {
		m.firstChunk.Record(ctx, c.FirstChunk.Seconds(), call)
	}
	// Trainers do not tell which tokens are those of images. A call without an answer adds 0.
	tokens := metric.WithAttributes(append(of, TokenModality.String("unknown"))...)
	m.input.Add(ctx, min(c.Usage.PromptTokens, maxTokens), tokens)
	m.output.Add(ctx, min(c.Usage.CompletionTokens, maxTokens), tokens)
	if c.Usage.CachedTokens > 0 {
		m.cached.Add(ctx, min(c.Usage.CachedTokens, maxTokens), tokens)
	}
	if c.Fault != nil {
		call = metric.WithAttributes(append(of, ErrorType.String(c.Fault.Code))...)
	}
	m.duration.Record(ctx, c.Took.Seconds(), call)
}
