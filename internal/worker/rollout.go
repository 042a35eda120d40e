package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Services connect a rollout to its worker and its trainer.
type Services struct {
	Bundle      func(ctx context.Context, sha string) (*tasks.Bundle, error)
	PutArtifact func(ctx context.Context, name string, data []byte) (schema.Artifact, error)
	Emit        func(*schema.Event)
	Live        func(id schema.ID, attempt, call int, d *schema.Delta)
	Model       gate.Model
	Shard       func(shard string) gate.Model // another process of the same trainer
	// Tool makes the trainer run one of its tools.
	Tool func(ctx context.Context, c schema.ToolCall) (schema.ToolResult, error)
	// Verify asks the trainer for a verdict. Until the trainer answers, operate runs
	// the operations that the trainer sends.
	Verify func(ctx context.Context, v schema.Verification, frames func(schema.Frame) error, operate modelcall.Operate) (schema.Verdict, error)
	// Suspended reports whether the rollout must stand still now. The channel is
	// closed when that changes. Nil: never suspended.
	Suspended func() (suspended bool, changed <-chan struct{})
	// HeldByTrainer reports whether the trainer's Hold pauses the calls that this
	// worker sends to an upstream. The channel is closed when that may have changed.
	// Nil: never held.
	HeldByTrainer func(ctx context.Context) (held bool, changed <-chan struct{})
}

// Rollout is one execution of one request, from its sandbox to its result.
type Rollout struct {
	Request   schema.Request // defaults are filled in
	Attempt   int
	Worker    string
	Owner     string // see Config.Owner
	Backends  []sandboxes.Backend
	Agents    []agents.Spec
	Cache     agents.Cache
	Upstreams []Upstream
	Caps      Caps
	Services  Services
	Timing    gate.Timing
	Memory    *gate.Memory // shared by the gates of a worker; nil: the gate's own
	Snapshots *Snapshots   // shared by the rollouts of a worker; nil: none are made
	Log       zerolog.Logger

	upstream      *Upstream // nil: the trainer answers
	agent         agents.Spec
	backend       sandboxes.Backend
	bundle        *tasks.Bundle
	steps         []*step
	share         *share            // nil: this rollout has no part in a snapshot
	sandbox       sandboxes.Sandbox // sandbox of the agent
	second        sandboxes.Sandbox // sandbox of a separate verifier while it runs
	session       *gate.Session
	handler       sessionHandler
	rec           *recorder
	clock         stopwatch
	serviceGroups []*serviceGroup   // services of both sandboxes
	touched       atomic.Bool       // the agent has run in its sandbox
	surveyed      bool              // survey has run
	at            string            // the last phase that ended
	absent        map[string]bool   // programs of verifiers that were missing before the first agent ran
	absentUsers   map[string]bool   // users of steps that were missing before the first agent ran
	spared        bool              // Spare was called, so KillAll leaves the main container's own command running
	left          bool              // processes that the last agent left run on
	notes         sync.Mutex        // guards result.Notes and full
	full          *broker.FullError // error of the last file that had no room in the trainer's bucket; nil: all were stored
	result        schema.Result
}

// BrokenError means that the rollout failed because its sandbox or worker is
// broken. Another attempt may succeed.
type BrokenError struct{ Fault *schema.Fault }

func (e *BrokenError) Error() string { return e.Fault.Error() }

// ended is an error that ends a rollout with a result.
type ended struct {
	status schema.Status
	fault  *schema.Fault
}

func (e *ended) Error() string { return string(e.status) + ": " + e.fault.Error() }

func failed(f *schema.Fault) error { return &ended{schema.StatusFailed, f} }

// Run executes the rollout. Its error is a *BrokenError, or the context's cause. A
// cancelled rollout has both an error and a result. In every case its sandboxes are closed when it returns.
func (r *Rollout) Run(ctx context.Context) (schema.Result, error) {
	r.rec = newRecorder(r)
	result, err := r.run(ctx)
	result = hide(&r.rec.secrets, result)
	var broken *BrokenError
	if errors.As(err, &broken) {
		return result, &BrokenError{hide(&r.rec.secrets, broken.Fault)}
	}
	if err == nil {
		r.emit(&schema.Event{Type: schema.EventResult, Result: &result})
	}
	return result, err
}

func (r *Rollout) run(ctx context.Context) (schema.Result, error) {
	q := &r.Request
	r.result = schema.Result{
		V: schema.Version, ID: q.ID, Trainer: q.Trainer, Group: q.Group, Index: q.Index, Task: q.Task.Name, Attempt: r.Attempt,
		Status: schema.StatusDone, Worker: r.Worker, Agent: q.Agent.Name, Labels: q.Labels, Notes: slices.Clone(q.Task.Notes),
	}
	err := r.execute(ctx)
	r.close(ctx)
	var stop *ended
	switch {
	case err == nil:
		if r.full != nil && r.result.Fault == nil { // the rollout is done, but not all of its files were stored
			r.result.Fault = schema.Faultf("artifacts", schema.CodeFull, schema.WhoTrainer, "%v", r.full)
		}
	case ctx.Err() != nil:
		return r.result, context.Cause(ctx)
	case errors.As(err, &stop):
		r.result.Status, r.result.Fault, r.result.Reward = stop.status, stop.fault, nil
	default:
		var broken *BrokenError
		if !errors.As(err, &broken) {
			broken = &BrokenError{schema.Faultf("sandbox", schema.CodeInternal, schema.WhoSandbox, "%v", err)}
			broken.Fault.Retryable = true
		}
		return r.result, broken
	}
	return r.result, nil
}

// execute runs the stages of the rollout in order.
func (r *Rollout) execute(ctx context.Context) error {
	q := &r.Request
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if err := r.joinGroup(ctx); err != nil {
		return err
	}
	if err := r.phase(ctx, "create", q.Limits.InstallMS+q.Limits.ReadyMS, r.create); err != nil {
		return r.buildFault(ctx, err, &q.Sandbox)
	}
	r.leaveGroup()
	if err := r.startServices(ctx, r.sandbox, &q.Sandbox, nil); err != nil {
		return errors.Join(err, r.keepServiceFiles(ctx))
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	err := r.runSteps(ctx)
	var stop *ended
	if err != nil && !errors.As(err, &stop) || ctx.Err() != nil {
		return err
	}
	return errors.Join(r.transcript(ctx), r.keepServiceFiles(ctx), err)
}

// ready prepares the new sandbox for the first step: it uploads files, waits for the
// health check and runs the setup. A sandbox that began with a snapshot needs none of
// this.
func (r *Rollout) ready(ctx context.Context) error {
	q := &r.Request
	if r.beginning() != nil {
		return nil
	}
	if err := r.phase(ctx, "upload", q.Limits.SetupMS, r.upload); err != nil {
		return err
	}
	if err := r.healthy(ctx, "healthcheck", q.Healthcheck, ""); err != nil {
		return err
	}
	if err := r.setup(ctx); err != nil {
		return err
	}
	return r.shareSetup(ctx)
}

// storeGrace is added to the limits of phases that store artifacts. If
// NATS is out of reach, some time passes before the rollout is suspended: storeGrace
// covers it. Suspended time does not count.
const storeGrace = time.Minute

// prepare chooses agent and backend, reads the bundle and plans the steps. It
// refuses a request that this worker cannot run.
func (r *Rollout) prepare(ctx context.Context) (err error) {
	q := &r.Request
	if err := r.choose(); err != nil {
		return failed(userFault(err))
	}
	r.result.AgentVersion = r.agent.Version
	if q.Task.Bundle == "" {
		r.bundle = &tasks.Bundle{}
	} else if r.bundle, err = r.Services.Bundle(ctx, q.Task.Bundle); err != nil {
		var bad *tasks.BundleError
		if errors.As(err, &bad) {
			return failed(schema.Faultf("upload", schema.CodeBadBundle, schema.WhoTask, "task.bundle: %v", err))
		}
		return err
	}
	r.steps = r.plan()
	for _, s := range r.steps {
		if r.agent.Solution && !r.bundle.Has(s.solution+"/solve.sh") {
			return failed(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "agent.name: %q needs %s, which the task does not have", r.agent.Name, s.artifact("solution/solve.sh")))
		}
		if v := s.Verify; v != nil && v.By == "" && v.Run == "" && s.script == "" && !v.Bundled {
			return failed(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "verify: the task's bundle has no %s", s.artifact("tests/test.sh")))
		}
	}
	return nil
}

func (r *Rollout) choose() (err error) {
	q := &r.Request
	if q.Mode != schema.ModeGate {
		if r.upstream, err = findUpstream(r.Upstreams, q.Model.Upstream, q.Trainer); err != nil {
			return err
		}
	}
	if r.agent, err = agents.Find(r.Agents, q.Agent.Name); err != nil {
		return err
	}
	if err := errors.Join(r.agent.Check(q.Agent), r.agent.CheckTask(q.Task.Instruction)); err != nil {
		return err
	}
	for _, s := range q.Steps {
		if err := r.agent.CheckTask(s.Instruction); err != nil {
			return fmt.Errorf("step %s: %w", s.Name, err)
		}
	}
	if !r.Cache.Installed(r.agent) {
		return &schema.InvalidError{Field: "agent.name", Value: r.agent.Name, Want: fmt.Sprintf("an agent that is installed on the worker (%v %s)", agents.ErrNotInstalled, r.agent.Name)}
	}
	if r.backend, err = r.findBackend("sandbox.backend", q.Sandbox.Backend); err != nil {
		return err
	}
	separate := []*schema.Verify{q.Verify}
	for _, s := range q.Steps {
		separate = append(separate, s.Verify)
	}
	for _, v := range separate {
		if v != nil && v.Separate != nil {
			if _, err := r.findBackend("verify.separate.backend", v.Separate.Backend); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Rollout) findBackend(field, name string) (sandboxes.Backend, error) {
	i := slices.IndexFunc(r.Backends, func(b sandboxes.Backend) bool { return b.Name() == name })
	if i < 0 {
		var names []string
		for _, b := range r.Backends {
			names = append(names, b.Name())
		}
		return nil, &schema.InvalidError{Field: field, Value: name, Want: fmt.Sprintf("one of %v", names)}
	}
	return r.Backends[i], nil
}

// userFault returns a fault that names the wrong field of a request or its
// task.
func userFault(err error) *schema.Fault {
	code := schema.CodeInvalid
	var no *sandboxes.UnsupportedError
	if errors.As(err, &no) {
		code = schema.CodeUnsupported
	}
	return schema.Faultf("request", code, schema.WhoUser, "%v", err)
}

const (
	// mountedAgents is the path of an agent's packages in its sandbox.
	mountedAgents = "/.turngate/agent"
	// agentDir is a writable folder for an agent's configuration and state.
	agentDir = "/tmp/.turngate-agent"
	// lostAfter is the time after which a sandbox without contact to its worker
	// ends.
	lostAfter = 300 * time.Second
)

// upload copies the task's own files into the working directory, unless they were the
// context of an image or belong to a compose file. Then it makes the folders of logs.
func (r *Rollout) upload(ctx context.Context, _ *phase) error {
	owner := r.userOf(r.Request.Agent.User)
	if r.bundle.Has("environment") && !r.bundle.Has("environment/Dockerfile") && !r.bundle.Has("environment/docker-compose.yaml") {
		if err := r.put(ctx, r.sandbox, "environment", r.sandbox.Workdir(), owner); err != nil {
			return err
		}
	}
	return r.makeLogs(ctx, owner)
}

func (r *Rollout) put(ctx context.Context, sb sandboxes.Sandbox, from, to, owner string) error {
	data, err := r.bundle.Tar(from)
	if err != nil {
		return err
	}
	if err := sb.Files().TarIn(ctx, to, bytes.NewReader(data), owner); err != nil {
		return fmt.Errorf("put %s into the sandbox: %w", from, err)
	}
	return nil
}

// setup runs the task's setup commands. A failed command ends the rollout.
func (r *Rollout) setup(ctx context.Context) error {
	left := time.Duration(r.Request.Limits.SetupMS) * time.Millisecond
	for i, c := range r.Request.Setup {
		name := fmt.Sprintf("setup[%d]", i)
		start := time.Now()
		err := r.phase(ctx, name, 0, func(ctx context.Context, p *phase) error {
			exit, err := r.command(ctx, r.sandbox, p, sandboxes.Cmd{Args: shell(c.Run), Env: c.Env, User: c.User, Timeout: max(left, time.Second)})
			if err == nil && !exit.OK() {
				err = failed(schema.Faultf(name, schema.CodeSetup, schema.WhoTask, "%s of %q: %s", exit, schema.Clip(c.Run, 200), schema.Clip(p.tail.String(), 2000)))
			}
			return err
		})
		if err != nil {
			return err
		}
		left -= time.Since(start)
	}
	return nil
}

// shell returns the argv that runs shell text of the task's author.
func shell(text string) []string { return []string{"/bin/sh", "-c", text} }

// command runs one command of the task to its end.
func (r *Rollout) command(ctx context.Context, sb sandboxes.Sandbox, p *phase, c sandboxes.Cmd) (schema.Exit, error) {
	c.Stdout, c.Stderr = p.output("stdout"), p.output("stderr")
	proc, err := r.start(ctx, sb, p.name, c)
	if err != nil {
		return schema.Exit{}, err
	}
	if p.exit, err = await(ctx, proc); err != nil {
		return schema.Exit{}, blameCommand(p.name, err)
	}
	return *p.exit, nil
}

// close ends the session and the sandboxes, even after the context has ended.
func (r *Rollout) close(ctx context.Context) {
	if r.session != nil {
		r.session.Close()
		r.rec.settle()
		stats, committed := r.session.Stats()
		r.result.Calls, r.result.Committed, r.result.Edits = stats, committed, r.session.Edits()
		for i := range r.result.Committed {
			c := &r.result.Committed[i]
			c.Shard = cmp.Or(r.Request.Gate.Routes[c.Tag].Shard, r.Request.Shard)
		}
	}
	for _, sb := range []sandboxes.Sandbox{r.second, r.sandbox} {
		if sb != nil {
			r.closeSandbox(ctx, sb)
		}
	}
	if r.share != nil {
		r.share.leave()
		r.share = nil
	}
	r.clock.end()
}

// note adds a sentence for users to the result, such as a limit that is not
// enforced or a part of the task that was not done.
func (r *Rollout) note(format string, args ...any) {
	text := schema.Clip(fmt.Sprintf(format, args...), 1000)
	r.notes.Lock()
	defer r.notes.Unlock()
	if len(r.result.Notes) < schema.MaxNotes && !slices.Contains(r.result.Notes, text) {
		r.result.Notes = append(r.result.Notes, text)
	}
}

// noteLimit notes a limit of the request that is not enforced. Limits that the
// request does not name get no note.
func (r *Rollout) noteLimit(s *schema.SandboxChoice, limit, text string) {
	named := map[string]bool{schema.LimitCPUs: s.CPUs > 0, schema.LimitMemory: s.MemoryBytes > 0, schema.LimitDisk: s.DiskBytes > 0, schema.LimitPids: s.Pids > 0}
	if named[limit] {
		r.note("%s", text)
	}
}

func (r *Rollout) emit(e *schema.Event) { r.rec.emit(e) }
