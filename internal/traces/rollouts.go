package traces

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/schema"
)

// Tracer makes the spans of rollouts on a worker. A nil Tracer makes none.
//
// A rollout outlives its worker, so no process has its span open. The ids of the spans of a
// rollout and of its attempts are made from the rollout's id: each worker knows the parent of a
// span that it makes, and the worker that ends a rollout, or that finds a dead worker's
// attempt, makes the span of it.
type Tracer struct {
	spans  trace.Tracer
	worker string
}

// scope names the source of spans and metrics.
const scope = "github.com/turngate/turngate"

// New returns the Tracer of a worker. The provider must use Chosen for its ids.
func New(p trace.TracerProvider, worker string) *Tracer {
	return &Tracer{p.Tracer(scope), worker}
}

// Subject is a rollout of which spans are made.
type Subject struct {
	Request *schema.Request
	Parent  trace.SpanContext // of the process that submitted it; not valid: there is none
	Stored  time.Time         // when its request was put into the queue
}

// Attempt is the span of an attempt.
type Attempt struct{ span trace.Span }

// Begin begins the span of an attempt. before is the number of the attempt before it; 0:
// there is none, and the time in the queue gets a span. The context has the span; without
// a Tracer it has the parent, so that the trainer's spans belong to its own trace.
func (t *Tracer) Begin(ctx context.Context, s Subject, attempt, before int) (context.Context, *Attempt) {
	if t == nil {
		return with(ctx, current{span: trace.SpanFromContext(trace.ContextWithRemoteSpanContext(context.Background(), s.Parent))}), nil
	}
	now := time.Now()
	parent := t.rollout(s, now) // another worker may end it, so this span is not ended
	in := trace.ContextWithSpan(context.Background(), parent)
	var links []trace.Link
	if before > 0 {
		links = []trace.Link{{SpanContext: parent.SpanContext().WithSpanID(attemptSpan(s.Request.ID, before))}}
	} else if parent.IsRecording() {
		_, queue := t.spans.Start(in, "queue", trace.WithTimestamp(earlier(s.Stored, now)), trace.WithAttributes(Rollout.String(string(s.Request.ID))))
		queue.End(trace.WithTimestamp(now))
	}
	span := t.attempt(in, s, attempt, t.worker, now, links)
	return with(ctx, current{span, t.spans}), &Attempt{span}
}

// attempt starts the span of an attempt.
func (t *Tracer) attempt(in context.Context, s Subject, attempt int, worker string, at time.Time, links []trace.Link) trace.Span {
	_, span := t.spans.Start(choose(in, ids{span: attemptSpan(s.Request.ID, attempt)}), "attempt", trace.WithTimestamp(at), trace.WithLinks(links...),
		trace.WithAttributes(Rollout.String(string(s.Request.ID)), AttemptNumber.Int(attempt), Worker.String(worker), AgentName.String(s.Request.Agent.Name)))
	return span
}

// rollout starts the span of a rollout. It begins when the request was stored, but not
// after now, since the server's clock may be ahead.
//
//nolint:contextcheck // the parent of the span is not that of the caller
func (t *Tracer) rollout(s Subject, now time.Time) trace.Span {
	q := s.Request
	in := context.Background()
	if s.Parent.IsValid() {
		in = trace.ContextWithRemoteSpanContext(in, s.Parent)
	}
	sum := sha256.Sum256([]byte(q.ID))
	_, span := t.spans.Start(choose(in, ids{trace.TraceID(sum[:16]), trace.SpanID(sum[16:24])}), "rollout", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(earlier(s.Stored, now)),
		trace.WithAttributes(Rollout.String(string(q.ID)), TrainerName.String(q.Trainer), Group.String(q.Group), TaskName.String(q.Task.Name)))
	return span
}

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}
	return a
}

// Lost makes the span of an attempt of a lost worker.
//
//nolint:contextcheck // the parent of the span is not that of the caller
func (t *Tracer) Lost(s Subject, attempt int, worker string, since time.Time) {
	if t == nil {
		return
	}
	now := time.Now()
	in := trace.ContextWithSpan(context.Background(), t.rollout(s, now))
	span := t.attempt(in, s, attempt, worker, earlier(since, now), nil)
	span.SetAttributes(Status.String("lost"))
	failed(span, "worker_lost")
	span.End(trace.WithTimestamp(now))
}

// Ended makes the span of a rollout after this worker has stored its end.
//
//nolint:contextcheck // the parent of the span is not that of the caller
func (t *Tracer) Ended(s Subject, end *schema.State) {
	if t == nil {
		return
	}
	now := time.Now()
	span := t.rollout(s, now)
	span.SetAttributes(Status.String(string(end.Status)), AttemptNumber.Int(end.Attempt))
	mark(span, end.Status, end.Fault)
	span.End(trace.WithTimestamp(now))
}

// End is the end of an attempt.
type End struct {
	Status string        // of its result, or returned or broken
	Fault  *schema.Fault // nil: none
	Reward *float64      // nil: not known
}

// End ends the span of an attempt after its end was stored. Otherwise the span must not be
// ended, since another worker makes it.
func (a *Attempt) End(e End) {
	if a == nil {
		return
	}
	a.span.SetAttributes(Status.String(e.Status))
	if e.Reward != nil {
		a.span.SetAttributes(Reward.Float64(*e.Reward))
	}
	mark(a.span, schema.Status(e.Status), e.Fault)
	a.span.End()
}

// Log adds the ids of a recorded span to the lines of a log.
func Log(ctx context.Context, to zerolog.Context) zerolog.Context {
	span := Recorded(ctx)
	if span == nil {
		return to
	}
	sc := span.SpanContext()
	return to.Stringer("trace_id", sc.TraceID()).Stringer("span_id", sc.SpanID())
}

// mark notes a fault. It counts as an error of the span only if the rollout failed by it, since
// the failure of an agent is a result.
func mark(span trace.Span, status schema.Status, fault *schema.Fault) {
	switch {
	case fault == nil:
	case status == schema.StatusDone || status == schema.StatusCancelled:
		span.SetAttributes(ErrorType.String(fault.Code))
	default:
		Failed(span, fault)
	}
}

// Failed notes a fault as the error of a span. Its message may quote the agent, so the
// span has the code alone.
func Failed(span trace.Span, fault *schema.Fault) {
	if fault != nil {
		failed(span, fault.Code)
	}
}

func failed(span trace.Span, code string) {
	span.SetAttributes(ErrorType.String(code))
	span.SetStatus(codes.Error, code)
}

// attemptSpan returns the id of the span of an attempt.
func attemptSpan(id schema.ID, attempt int) trace.SpanID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", id, attempt))
	return trace.SpanID(sum[:8])
}

// ids are the ids of the next span.
type ids struct {
	trace trace.TraceID // of a span without parent
	span  trace.SpanID
}

type idsKey struct{}

func choose(ctx context.Context, v ids) context.Context { return context.WithValue(ctx, idsKey{}, v) }

// Chosen returns the ids that the next span must have; ok is false if any do. The trace
// id is for a span without parent.
func Chosen(ctx context.Context) (t trace.TraceID, s trace.SpanID, ok bool) {
	v, ok := ctx.Value(idsKey{}).(ids)
	return v.trace, v.span, ok
}

// current is the span of a context. It has a key of its own, so that the HTTP clients of
// Docker and others add no spans to a rollout.
type current struct {
	span  trace.Span
	spans trace.Tracer // nil: no spans are made
}

type currentKey struct{}

func with(ctx context.Context, c current) context.Context {
	return context.WithValue(ctx, currentKey{}, c)
}

// Start begins a span under that of the context, and returns a context with it. The
// caller ends it. If the trace is not recorded, nothing happens.
func Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	c, _ := ctx.Value(currentKey{}).(current)
	if c.spans == nil || !c.span.IsRecording() {
		return ctx, trace.SpanFromContext(context.Background()) // it records nothing
	}
	_, span := c.spans.Start(trace.ContextWithSpan(context.Background(), c.span), name, opts...)
	return with(ctx, current{span, c.spans}), span
}

// Under returns ctx with the span of another context.
func Under(ctx, of context.Context) context.Context {
	c, ok := of.Value(currentKey{}).(current)
	if !ok {
		return ctx
	}
	return with(ctx, c)
}

// Recorded returns the span of a context if it is recorded; otherwise nil.
func Recorded(ctx context.Context) trace.Span {
	if c, ok := ctx.Value(currentKey{}).(current); ok && c.span.IsRecording() {
		return c.span
	}
	return nil
}

// SpanContext returns that of a rollout's span in the context, or else that of the
// program's own span.
func SpanContext(ctx context.Context) trace.SpanContext {
	if c, ok := ctx.Value(currentKey{}).(current); ok {
		return c.span.SpanContext()
	}
	return trace.SpanContextFromContext(ctx)
}

// Note adds attributes to the span of a context and gives it a name; empty: the name
// stays.
func Note(ctx context.Context, name string, of ...attribute.KeyValue) {
	span := Recorded(ctx)
	if span == nil {
		return
	}
	span.SetAttributes(of...)
	if name != "" {
		span.SetName(name)
	}
}
