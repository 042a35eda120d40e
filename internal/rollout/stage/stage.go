// Package stage runs the stages of a rollout one after the other: each has a name, a
// time limit and a part of the record. A clock measures their time.
package stage

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
)

// Stages runs the stages of one rollout.
type Stages struct {
	Record *record.Record
	Clock  Clock
	// Touched tells that the agent has run in its sandbox, so that it may have spoiled it.
	Touched atomic.Bool
	// Apart tells that the stages use the sandbox of a separate verifier.
	Apart bool

	last string
}

// Run runs one stage and records it in the result, and as a span. limitMS bounds its time in
// milliseconds; 0: no limit.
func (s *Stages) Run(ctx context.Context, name string, limitMS int64, run func(context.Context, *record.Phase) error) error {
	p := s.Record.Begin(name)
	ctx, span := traces.Start(ctx, telemetry.PhaseKind(name), trace.WithAttributes(traces.Phase.String(name)))
	err := s.Within(ctx, name, limitMS, func(ctx context.Context) error {
		return ends.BlameFiles(name, s.BlameRuin(name, run(ctx, p)))
	})
	s.last = name
	fault := faultOf(name, err)
	p.End(fault)
	if p.Exit != nil {
		span.SetAttributes(traces.ExitCode.Int(p.Exit.Code))
	}
	traces.Failed(span, fault)
	span.End()
	return err
}

// Within runs a part of a stage. limitMS bounds its time in milliseconds; 0: no limit.
func (s *Stages) Within(ctx context.Context, name string, limitMS int64, run func(context.Context) error) error {
	inner, late := ctx, (*ends.Overtime)(nil)
	if limitMS > 0 {
		late = &ends.Overtime{Limit: MS(limitMS), Err: &ends.Broken{Fault: schema.Faultf(name, schema.CodeTimeout, schema.WhoSandbox, "no end within %d ms", limitMS)}}
		var cancel context.CancelFunc
		inner, cancel = s.Clock.Limit(ctx, late.Limit, late)
		defer cancel()
	}
	err := run(inner)
	if err == nil || inner.Err() == nil {
		return err
	}
	if late != nil {
		errors.As(err, &late.Err.Service)
	}
	var spoiled *ends.Spoiled
	if cause := context.Cause(inner); !errors.Is(cause, late) || !errors.As(err, &spoiled) { // the context's end explains the error
		return cause
	}
	return err
}

// Last returns the name of the last stage that ended.
func (s *Stages) Last() string { return s.last }

// BlameRuin blames the agent for the loss of a sandbox if it has run in it.
func (s *Stages) BlameRuin(name string, err error) error {
	return ends.BlameRuin(name, s.Touched.Load() && !s.Apart, err)
}

// faultOf returns the fault with which a phase ends; nil: none.
func faultOf(phase string, err error) *schema.Fault {
	var stop *ends.Failed
	var spoiled *ends.Spoiled
	switch {
	case errors.As(err, &stop):
		return stop.Fault
	case errors.As(err, &spoiled):
		return spoiled.Fault(phase)
	case errors.Is(err, queue.ErrCancelled):
		return schema.Faultf(phase, schema.CodeCancelled, schema.WhoTrainer, "%v", err)
	case err != nil:
		return schema.Faultf(phase, schema.CodeInternal, schema.WhoWorker, "%v", err)
	default:
		return nil
	}
}

// MS converts milliseconds.
func MS(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
