// Package traces makes the spans of rollouts and the metrics of their model calls, for
// OpenTelemetry. A trace reaches a process in the headers of a message, as W3C Trace Context
// defines them, and goes on in contexts. Package export sends the spans and the metrics of a
// process to a collector.
package traces

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// maxState is the longest tracestate in bytes that is passed on. W3C Trace Context wants
// at least 512.
const maxState = 512

// headers are the headers of a NATS message. Their names are case-sensitive, and the trace's
// names are in lower case.
type headers map[string][]string

// Get implements propagation.TextMapCarrier.
func (h headers) Get(name string) string {
	if all := h[name]; len(all) > 0 {
		return all[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (h headers) Set(name, value string) { h[name] = []string{value} }

// Keys implements propagation.TextMapCarrier.
func (h headers) Keys() []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	return names
}

// Put adds a span context to the headers of a message. One that is not valid adds
// nothing.
//
//nolint:contextcheck // the propagator wants a context, of which it uses the span alone
func Put(h map[string][]string, sc trace.SpanContext) {
	if sc.IsValid() {
		propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), headers(h))
	}
}

// Of returns the span context in the headers of a message. It is not valid if there is
// none, or if the sender wrote a wrong one: a trace is never a reason to refuse a message.
//
//nolint:contextcheck // the propagator wants a context, of which it uses the span alone
func Of(h map[string][]string) trace.SpanContext {
	if len(h["traceparent"]) == 0 {
		return trace.SpanContext{}
	}
	sc := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), headers(h)))
	if len(sc.TraceState().String()) > maxState {
		sc = sc.WithTraceState(trace.TraceState{})
	}
	return sc
}

// OfHTTP returns the span context in the headers of an HTTP request, as Of does.
func OfHTTP(h http.Header) trace.SpanContext {
	return Of(map[string][]string{"traceparent": h.Values("Traceparent"), "tracestate": {strings.Join(h.Values("Tracestate"), ",")}})
}
