package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/collector"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/internal/traces/export"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// submitter returns a context with the span of a trainer that submits, and its ids.
func submitter(t *testing.T) (context.Context, trace.SpanContext) {
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5, 6}, TraceFlags: trace.FlagsSampled})
	return trace.ContextWithRemoteSpanContext(t.Context(), sc), sc
}

// exporter returns the Tracer of a worker, and a function that sends its spans.
func exporter(t *testing.T, wid string) (*traces.Tracer, func()) {
	t.Helper()
	e, err := export.FromEnv(t.Context(), wid, "test", zerolog.Nop())
	harness.Must(t, err)
	t.Cleanup(e.Close)
	return e.Tracer(wid), e.Close
}

// drawn draws the spans under a parent, with their attempts and status.
func drawn(all []collector.Span, under string) string {
	var b strings.Builder
	for _, s := range all {
		if s.Parent == under {
			fmt.Fprintf(&b, "%s %v %v(%s)", s.Name, s.Of["turngate.attempt"], s.Of["turngate.status"], drawn(all, s.ID))
		}
	}
	return b.String()
}

// agent makes a span inside that of an attempt, and returns the attempt's.
func agent(t *testing.T, of *traces.Tracer, j *queue.Job) *traces.Attempt {
	ctx, attempt := of.Begin(t.Context(), j.Subject(), j.Attempt, j.Before)
	_, span := traces.Start(ctx, "agent")
	span.End()
	return attempt
}

// TestTheSpansOfATakeover kills a worker. The spans of both attempts are one tree under
// the trainer's span, and the worker that takes the rollout over makes the span that the
// dead one could not send.
func TestTheSpansOfATakeover(t *testing.T) {
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.HTTP)
	b := newBench(t)
	dead, flushDead := exporter(t, "w2")
	heir, flush := exporter(t, "w3")
	dying, crash := b.crashing(t, "w2", func(c *queue.WorkerConfig) { c.Traces = dead })
	ctx, parent := submitter(t)
	_, err := b.Trainer.Submit(ctx, 2, []schema.Request{harness.Request("alpha-1")})
	harness.Must(t, err)
	first := takeFrom(t, dying)
	agent(t, dead, first)
	flushDead()
	crash()
	second := takeFrom(t, b.NewWorker(t, "w3", func(c *queue.WorkerConfig) { c.Traces = heir }))
	attempt := agent(t, heir, second)
	harness.Must(t, second.Done(t.Context(), outcome(second)))
	attempt.End(traces.End{Status: "done"})
	flush()
	all := c.Spans()
	want := "rollout 2 done(queue <nil> <nil>()attempt 1 lost(agent <nil> <nil>())attempt 2 done(agent <nil> <nil>()))"
	if got := drawn(all, parent.SpanID().String()); got != want || len(all) != 6 {
		t.Fatalf("%d spans: %s", len(all), got)
	}
	ids := map[string]collector.Span{}
	for _, s := range all {
		if s.Trace != parent.TraceID().String() || ids[s.ID].Span != nil {
			t.Errorf("%s has the ids %s %s", s.Name, s.Trace, s.ID)
		}
		ids[s.ID] = s
	}
	for _, s := range all {
		switch {
		case s.Of["turngate.status"] == "lost" && (s.Of["turngate.worker"] != "w2" || s.Of["error.type"] != "worker_lost" || s.Status.Code.String() != "STATUS_CODE_ERROR" || len(s.Links) > 0):
			t.Errorf("the lost attempt has %v, %v", s.Of, s.Status)
		case s.Name == "attempt" && s.Of["turngate.status"] == "done":
			if len(s.Links) != 1 || ids[fmt.Sprintf("%x", s.Links[0].SpanId)].Of["turngate.status"] != "lost" || s.Of["turngate.worker"] != "w3" {
				t.Errorf("the second attempt has %v, linked to %v", s.Of, s.Links)
			}
		}
	}
}

// TestTheSpansOfADeadRollout kills the worker of the only try: the next worker makes the
// spans of the attempt and of the rollout.
func TestTheSpansOfADeadRollout(t *testing.T) {
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.GRPC)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // milliseconds
	b := newBench(t)
	heir, _ := exporter(t, "w3")
	dying, crash := b.crashing(t, "w2")
	ctx, parent := submitter(t)
	r := harness.Request("alpha-1")
	r.MaxAttempts = 1
	_, err := b.Trainer.Submit(ctx, 2, []schema.Request{r})
	harness.Must(t, err)
	takeFrom(t, dying)
	crash()
	w := b.NewWorker(t, "w3", func(c *queue.WorkerConfig) { c.Traces = heir })
	taking, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = w.Take(taking) // there is no request that can be taken
	}()
	harness.Eventually(t, "the spans", 5*time.Minute, func() bool { // after the end of the rollout
		return drawn(c.Spans(), parent.SpanID().String()) == "rollout 1 dead(attempt 1 lost())"
	})
	stop()
	<-ended
}

// TestATraceStaysWithItsRequest parks a request, and looks at the copy that its worker
// keeps.
func TestATraceStaysWithItsRequest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, parent := submitter(t)
	r := harness.Request("alpha-1")
	r.DelayMS = 50
	_, err := b.Trainer.Submit(ctx, 2, []schema.Request{r, harness.Request("alpha-2")}) // a batch
	harness.Must(t, err)
	for range 2 {
		if j := b.Take(t); j.Subject().Parent.SpanID() != parent.SpanID() || j.Subject().Parent.TraceID() != parent.TraceID() {
			t.Errorf("%s has the parent %v", j.Request.ID, j.Subject().Parent)
		}
	}
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Records("alpha"))
	harness.Must(t, err)
	m, err := s.GetLastMsgForSubject(t.Context(), subjects.RequestCopy("alpha-1"))
	harness.Must(t, err)
	if got := traces.Of(m.Header); got.SpanID() != parent.SpanID() {
		t.Errorf("the copy has %v", m.Header)
	}
}
