// Package rollout runs one request from top to bottom: it makes a place, runs the agent
// and the verifier of each step there, and leaves the result in a record.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout/agentrun"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/internal/rollout/verify"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Services connect a rollout to its worker and its trainer.
type Services struct {
	// Bundle opens the bundle of the task. The rollout closes it.
	Bundle func(ctx context.Context, sha string) (*tasks.Bundle, error)
	Model  gate.Model
	Shard  func(shard string) gate.Model // another process of the same trainer
	// Tool makes the trainer run one of its tools.
	Tool   func(ctx context.Context, c schema.ToolCall) (schema.ToolResult, error)
	Verify verify.Ask
	// Suspended reports whether the rollout must stand still now. The channel is
	// closed when that changes. Nil: never suspended.
	Suspended func() (suspended bool, changed <-chan struct{})
	// HeldByTrainer reports whether the trainer's Hold pauses the calls that this
	// worker sends to an upstream. The channel is closed when that may have changed.
	// Nil: never held.
	HeldByTrainer func(ctx context.Context) (held bool, changed <-chan struct{})
}

// Person does a task at a terminal.
type Person = agentrun.Person

// Streams are the ends of a run at its person.
type Streams = agentrun.Streams

// Rollout is one execution of one request, from its sandbox to its result.
type Rollout struct {
	Request      schema.Request // defaults are filled in
	Attempt      int
	Record       *record.Record
	Owner        string // marks the sandboxes on their host
	Backends     []sandboxes.Backend
	Agents       []agents.Spec
	Cache        agents.Cache
	Upstreams    []models.Upstream
	Caps         place.Caps
	Prices       map[string]float64 // as in place.Config
	Services     Services
	Timing       gate.Timing
	TraceContent bool                // add the texts of calls to their spans
	CallMetrics  *traces.CallMetrics // nil: calls are not measured
	Memory       *gate.Memory        // shared by the gates of a worker; nil: the gate's own
	Snapshots    *place.Snapshots    // shared by the rollouts of a worker; nil: none are made
	Person       Person              // nil: no person is at a terminal
	Reach        *reach.Host         // serves the sandboxes to commands of the user; nil: none does
	Keep         Keep
	Started      func() // called when the sandboxes are made and set up
}

// Keep says which rollouts keep their last sandbox after their end. The zero value keeps
// none.
type Keep struct {
	For  time.Duration // 0: no sandbox is kept
	Each bool          // also of a rollout with the reward 1 or more, or without a verification
}

// Run executes the rollout. Its error is an *ends.Broken, also after a panic, or the
// context's cause. The record has the result then, too, since a cancelled rollout has
// both. In every case its sandboxes are closed when it returns.
func (r *Rollout) Run(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			why := fmt.Sprintf("panic: %v", p)
			r.Record.Log.Error().Str("stack", string(debug.Stack())).Msg(why)
			err = &ends.Broken{Fault: schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "%s", why)}
		}
	}()
	err = r.execute(ctx)
	var stop *ends.Failed
	var broken *ends.Broken
	var disk *spool.Error
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &disk): // also of the transcript of a rollout that failed
		broken = &ends.Broken{Fault: schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "%v", err)}
		broken.Fault.Retryable = true
		return broken
	case errors.As(err, &stop):
		r.Record.Fail(stop.Fault)
	case errors.As(err, &broken):
		return broken
	default:
		broken = &ends.Broken{Fault: schema.Faultf("sandbox", schema.CodeInternal, schema.WhoSandbox, "%v", err)}
		broken.Fault.Retryable = true
		errors.As(err, &broken.Service)
		return broken
	}
	result := r.Record.Result()
	r.Record.Events.Emit(&schema.Event{Type: schema.EventResult, Result: &result})
	return nil
}

// execute runs the stages of the rollout in order. It closes the agent's session, the sandboxes
// and the clock when it returns.
func (r *Rollout) execute(ctx context.Context) (err error) {
	answers := &models.Models{Request: &r.Request, Upstreams: r.Upstreams, Trainer: r.Services.Model, Shard: r.Services.Shard, Held: r.Services.HeldByTrainer, Log: r.Record.Log}
	agent, err := r.choose(answers)
	if err != nil {
		return ends.Fail(ends.UserFault(err))
	}
	r.Record.Agent(agent.Version)
	bundle, err := r.bundle(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := bundle.Close(); err != nil {
			r.Record.Log.Warn().Err(err).Msg("the task's files were not closed")
		}
	}()
	steps, err := plan.Of(&r.Request, bundle, &agent)
	if err != nil {
		return err
	}
	stages := &stage.Stages{Record: r.Record}
	defer stages.Clock.End()
	where := place.New(place.Config{
		Request: &r.Request, Attempt: r.Attempt, Owner: r.Owner, Backends: r.Backends, Caps: r.Caps, Prices: r.Prices, Agent: agent, Cache: r.Cache, Bundle: bundle, Steps: steps,
		Snapshots: r.Snapshots, Stages: stages, Suspended: r.Services.Suspended, Reach: r.Reach, KeepFor: r.Keep.For,
	})
	defer where.Close(ctx)
	verified := false
	defer func() { r.keep(ctx, where, verified, err) }()
	if err := where.Open(ctx); err != nil {
		return err
	}
	r.Started()
	runs := agentrun.New(agentrun.Config{Place: where, Models: answers, Timing: r.Timing, Memory: r.Memory, Tool: r.Services.Tool, Person: r.Person, TraceContent: r.TraceContent, CallMetrics: r.CallMetrics})
	defer runs.Close()
	s := &stepper{place: where, rec: r.Record, runs: runs, ask: r.Services.Verify}
	err = s.all(ctx)
	verified = s.verified
	var stop *ends.Failed
	if err != nil && !errors.As(err, &stop) || ctx.Err() != nil {
		return err
	}
	return errors.Join(r.keepTranscript(ctx, stages), where.KeepServiceFiles(ctx), err)
}

// keep keeps the last sandbox of a rollout that ends with err, and notes the command that
// enters it. A rollout that runs again keeps none.
func (r *Rollout) keep(ctx context.Context, where *place.Place, verified bool, err error) {
	var stop *ends.Failed
	var disk *spool.Error
	failed := errors.As(err, &stop)
	reward := r.Record.Result().Reward
	if r.Keep.For == 0 || ctx.Err() != nil || errors.As(err, &disk) || err != nil && !failed || !r.Keep.Each && (!verified || !failed && reward != nil && *reward >= 1) {
		return
	}
	kept, err := where.Keep() //nolint:contextcheck // the sandbox outlives the rollout
	if err != nil {
		r.Record.Note("its sandbox is not kept: %v", err)
		return
	}
	r.Record.Note("its sandbox is kept until %s: turngate sandbox exec %s", kept.Until.Format(time.DateTime), kept.ID)
}

// keepTranscript keeps the transcript of all model calls.
func (r *Rollout) keepTranscript(ctx context.Context, stages *stage.Stages) error {
	made := r.Record.Calls.End()
	if made == nil {
		return nil
	}
	return stages.Run(ctx, "transcript", r.Request.Limits.VerifyMS+place.StoreGrace.Milliseconds(), func(ctx context.Context, p *record.Phase) error {
		return r.Record.KeepTranscript(ctx, p, made)
	})
}

// bundle reads the task's files.
func (r *Rollout) bundle(ctx context.Context) (*tasks.Bundle, error) {
	if r.Request.Task.Bundle == "" {
		return &tasks.Bundle{}, nil
	}
	bundle, err := r.Services.Bundle(ctx, r.Request.Task.Bundle)
	var bad *tasks.BundleError
	if errors.As(err, &bad) {
		return nil, ends.Fail(schema.Faultf("upload", schema.CodeBadBundle, schema.WhoTask, "task.bundle: %v", err))
	}
	return bundle, err
}

// choose chooses the agent. It refuses a request that this worker cannot run.
func (r *Rollout) choose(answers *models.Models) (agent agents.Spec, err error) {
	q := &r.Request
	if _, err := answers.Upstream(); err != nil {
		return agent, err
	}
	if agent, err = agents.Find(r.Agents, q.Agent.Name); err != nil {
		return agent, err
	}
	if err := errors.Join(agent.Check(q.Agent), agent.CheckTask(q.Task.Instruction)); err != nil {
		return agent, err
	}
	for _, s := range q.Steps {
		if err := agent.CheckTask(s.Instruction); err != nil {
			return agent, fmt.Errorf("step %s: %w", s.Name, err)
		}
	}
	if !r.Cache.Installed(agent) {
		return agent, &schema.InvalidError{Field: "agent.name", Value: agent.Name, Want: fmt.Sprintf("an agent that is installed on the worker (%v %s)", agents.ErrNotInstalled, agent.Name)}
	}
	if _, err := place.FindBackend(r.Backends, "sandbox.backend", q.Sandbox.Backend); err != nil {
		return agent, err
	}
	verifiers := []*schema.Verify{q.Verify}
	for _, s := range q.Steps {
		verifiers = append(verifiers, s.Verify)
	}
	for _, v := range verifiers {
		if v != nil && v.Separate != nil {
			if _, err := place.FindBackend(r.Backends, "verify.separate.backend", v.Separate.Backend); err != nil {
				return agent, err
			}
		}
	}
	return agent, nil
}
