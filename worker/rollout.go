package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/worker/gate"
)

// Services are what a rollout needs of the world outside its sandbox.
type Services struct {
	Bundle      func(ctx context.Context, sha string) (*tasks.Bundle, error)
	PutArtifact func(ctx context.Context, name string, data []byte) (schema.Artifact, error)
	Emit        func(*schema.Event)
	Live        func(id schema.ID, attempt, call int, d *schema.Delta)
	Model       gate.Model
	Shard       func(shard string) gate.Model // the same trainer's other processes
	// Tool has the trainer run one of its tools.
	Tool func(ctx context.Context, c schema.ToolCall) (schema.ToolResult, error)
	// Held reports whether everything must stand still now; the channel is
	// closed when that changes. Nil: never.
	Held func() (held bool, changed <-chan struct{})
	// HeldByTrainer reports whether calls that the trainer does not answer must
	// wait for it; the channel is closed when that may have changed. Nil: never.
	HeldByTrainer func(ctx context.Context) (held bool, changed <-chan struct{})
}

// Rollout is one execution of one request, from top to bottom.
type Rollout struct {
	Request   schema.Request // with its defaults
	Attempt   int
	Worker    string
	Backends  []sandboxes.Backend
	Agents    []agents.Spec
	Cache     agents.Cache
	Upstreams []Upstream
	Services  Services
	Timing    gate.Timing
	Memory    *gate.Memory // of the gate; nil: its own
	Log       zerolog.Logger

	upstream *Upstream // nil: the trainer answers
	agent    agents.Spec
	backend  sandboxes.Backend
	bundle   *tasks.Bundle
	sandbox  sandboxes.Sandbox
	session  *gate.Session
	rec      *recorder
	clock    stopwatch
	result   schema.Result
}

// BrokenError means that the rollout failed for want of a working sandbox or
// worker: another try may succeed.
type BrokenError struct{ Fault *schema.Fault }

func (e *BrokenError) Error() string { return e.Fault.Error() }

// ended stops a rollout with a result.
type ended struct {
	status schema.Status
	fault  *schema.Fault
}

func (e *ended) Error() string { return string(e.status) + ": " + e.fault.Error() }

func failed(f *schema.Fault) error { return &ended{schema.StatusFailed, f} }

// Run executes the rollout. It gives a result, or an error: a *BrokenError, or
// the context's cause. Whatever happens, its sandbox is gone when it returns.
func (r *Rollout) Run(ctx context.Context) (schema.Result, error) {
	q := &r.Request
	r.rec = newRecorder(r)
	r.result = schema.Result{
		V: schema.Version, ID: q.ID, Trainer: q.Trainer, Group: q.Group, Index: q.Index, Task: q.Task.Name, Attempt: r.Attempt,
		Status: schema.StatusDone, Worker: r.Worker, Agent: q.Agent.Name, Labels: q.Labels,
	}
	err := r.story(ctx)
	r.close(ctx)
	var stop *ended
	switch {
	case err == nil:
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
	r.emit(&schema.Event{Type: schema.EventResult, Result: &r.result})
	return r.result, nil
}

// story is what happens, in order.
func (r *Rollout) story(ctx context.Context) error {
	q := &r.Request
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if err := r.phase(ctx, "create", q.Limits.InstallMS+q.Limits.ReadyMS, r.create); err != nil {
		return err
	}
	if err := r.phase(ctx, "upload", q.Limits.SetupMS, r.upload); err != nil {
		return err
	}
	if err := r.setup(ctx); err != nil {
		return err
	}
	if err := r.runAgent(ctx); err != nil {
		return err
	}
	if err := r.phase(ctx, "artifacts", q.Limits.VerifyMS+unheard.Milliseconds(), r.collect); err != nil {
		return err
	}
	if q.Verify == nil {
		return nil
	}
	return r.verify(ctx)
}

// unheard is for how long a server that cannot be reached may keep artifacts
// waiting before the rollout is held and its clock stands still.
const unheard = time.Minute

// prepare checks that this worker can do what is asked, before anything
// starts.
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
	if r.agent.Solution && !r.bundle.Has("solution/solve.sh") {
		return failed(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "agent.name: %q needs solution/solve.sh, which the task does not have", r.agent.Name))
	}
	if q.Verify != nil && q.Verify.Run == "" && !r.bundle.Has("tests/test.sh") {
		return failed(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "verify: the task's bundle has no tests/test.sh"))
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
	if !r.Cache.Installed(r.agent) {
		return &schema.InvalidError{Field: "agent.name", Value: r.agent.Name, Want: fmt.Sprintf("an agent that is installed on the worker (%v %s)", agents.ErrNotInstalled, r.agent.Name)}
	}
	i := slices.IndexFunc(r.Backends, func(b sandboxes.Backend) bool { return b.Name() == q.Sandbox.Backend })
	if i < 0 {
		var names []string
		for _, b := range r.Backends {
			names = append(names, b.Name())
		}
		return &schema.InvalidError{Field: "sandbox.backend", Value: q.Sandbox.Backend, Want: fmt.Sprintf("one of %v", names)}
	}
	r.backend = r.Backends[i]
	return nil
}

// userFault names the field that a request or its task has wrong.
func userFault(err error) *schema.Fault {
	code := schema.CodeInvalid
	var no *sandboxes.UnsupportedError
	if errors.As(err, &no) {
		code = schema.CodeUnsupported
	}
	return schema.Faultf("request", code, schema.WhoUser, "%v", err)
}

const (
	// mountedAgents is where an agent's packages are in every sandbox.
	mountedAgents = "/.turngate/agent"
	// agentDir is a writable folder for an agent's configuration and state.
	agentDir = "/tmp/.turngate-agent"
	// lostAfter ends a sandbox that has not heard of its worker for so long.
	lostAfter = 300 * time.Second
)

func (r *Rollout) create(ctx context.Context, _ *phase) error {
	q := &r.Request
	s := q.Sandbox
	spec := sandboxes.Spec{
		Owner: r.Worker, Rollout: q.ID, Attempt: r.Attempt, Image: s.Image, Network: s.Network,
		CPUs: s.CPUs, MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes, Pids: s.Pids, GPUs: s.GPUs,
		User: s.User, Workdir: s.Workdir, Env: s.Env,
		Ready: time.Duration(q.Limits.ReadyMS) * time.Millisecond, Life: time.Duration(q.Limits.TotalMS()) * time.Millisecond, Lost: lostAfter,
	}
	if len(r.agent.Packages) > 0 {
		spec.Mounts = []sandboxes.Mount{{Host: r.Cache.Path(r.agent), Guest: mountedAgents}}
	}
	if s.Build {
		context, err := r.bundle.Tar("environment")
		if err != nil || !r.bundle.Has("environment/Dockerfile") {
			return failed(schema.Faultf("create", schema.CodeBadBundle, schema.WhoTask, "sandbox.build: the task's bundle has no environment/Dockerfile"))
		}
		spec.BuildTar = context
	}
	sb, err := r.backend.Create(ctx, spec)
	if err != nil {
		return createFault(err)
	}
	r.sandbox = sb
	r.clock.follow(ctx, r.Services.Held, sb, r.Log)
	if r.agent.Glibc {
		if _, err := sb.Files().Stat(ctx, agents.Loader()); err != nil {
			return failed(schema.Faultf("create", schema.CodeMissing, schema.WhoTask,
				"the image lacks %s: %s needs the GNU C library, so take an image that has it (Debian, Ubuntu, Fedora, ...), or the agent mini", agents.Loader(), r.agent.Name))
		}
	}
	return nil
}

// createFault tells the request's and the task's mistakes from ours.
func createFault(err error) error {
	var no *sandboxes.UnsupportedError
	var image *sandboxes.ImageError
	switch {
	case errors.As(err, &no):
		return failed(userFault(no))
	case errors.As(err, &image):
		return failed(schema.Faultf("create", schema.CodeImage, schema.WhoTask, "sandbox.image: %v", image))
	default:
		return err
	}
}

// upload puts the task's own files into the working directory, unless they
// were the context of an image.
func (r *Rollout) upload(ctx context.Context, _ *phase) error {
	owner := r.agentUser()
	if r.bundle.Has("environment") && !r.bundle.Has("environment/Dockerfile") {
		if err := r.put(ctx, "environment", r.sandbox.Workdir(), owner); err != nil {
			return err
		}
	}
	if r.agent.Solution {
		return r.put(ctx, "solution", "/solution", owner)
	}
	return nil
}

func (r *Rollout) put(ctx context.Context, from, to, owner string) error {
	data, err := r.bundle.Tar(from)
	if err != nil {
		return err
	}
	if err := r.sandbox.Files().TarIn(ctx, to, bytes.NewReader(data), owner); err != nil {
		return fmt.Errorf("put %s into the sandbox: %w", from, err)
	}
	return nil
}

func (r *Rollout) agentUser() string {
	if u := r.Request.Agent.User; u != "" {
		return u
	}
	return r.Request.Sandbox.User
}

// setup runs the task's commands; one that fails ends the rollout.
func (r *Rollout) setup(ctx context.Context) error {
	left := time.Duration(r.Request.Limits.SetupMS) * time.Millisecond
	for i, c := range r.Request.Setup {
		name := fmt.Sprintf("setup[%d]", i)
		start := time.Now()
		err := r.phase(ctx, name, 0, func(ctx context.Context, p *phase) error {
			exit, err := r.command(ctx, p, sandboxes.Cmd{Args: shell(c.Run), Env: c.Env, User: c.User, Timeout: max(left, time.Second)})
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

// shell runs text that the task's author wrote as one command.
func shell(text string) []string { return []string{"/bin/sh", "-c", text} }

// command runs one command of the task to its end.
func (r *Rollout) command(ctx context.Context, p *phase, c sandboxes.Cmd) (schema.Exit, error) {
	c.Stdout, c.Stderr = p.output("stdout"), p.output("stderr")
	proc, err := r.sandbox.Start(ctx, c)
	var none *sandboxes.NoCommandError
	if errors.As(err, &none) {
		return schema.Exit{}, failed(schema.Faultf(p.name, schema.CodeMissing, schema.WhoTask, "%v", none))
	}
	if err != nil {
		return schema.Exit{}, err
	}
	if p.exit, err = await(ctx, proc); err != nil {
		return schema.Exit{}, err
	}
	return *p.exit, nil
}

// close ends the session and the sandbox, also when the context is over.
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
	r.clock.end()
	if r.sandbox == nil || crash.Broken("I5") {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := r.sandbox.Close(ctx); err != nil {
		r.Log.Error().Err(err).Msg("a sandbox was not removed")
	}
}

func (r *Rollout) emit(e *schema.Event) { r.rec.emit(e) }
