// Package rollout runs one request from top to bottom: a Rollout makes the sandbox,
// runs the agent and the verifier of each step, and leaves its result in a record.
package rollout

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Services connect a rollout to its worker and its trainer.
type Services struct {
	Bundle func(ctx context.Context, sha string) (*tasks.Bundle, error)
	Model  gate.Model
	Shard  func(shard string) gate.Model // another process of the same trainer
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
	Record    *record.Record
	Owner     string // marks the sandboxes on their host
	Backends  []sandboxes.Backend
	Agents    []agents.Spec
	Cache     agents.Cache
	Upstreams []Upstream
	Caps      Caps
	Services  Services
	Timing    gate.Timing
	Memory    *gate.Memory // shared by the gates of a worker; nil: the gate's own
	Snapshots *Snapshots   // shared by the rollouts of a worker; nil: none are made

	upstream      *Upstream // nil: the trainer answers
	agent         agents.Spec
	backend       sandboxes.Backend
	bundle        *tasks.Bundle
	steps         []*step
	ran           []*step           // the first ones, which have ended
	share         *share            // nil: this rollout has no part in a snapshot
	sandbox       sandboxes.Sandbox // sandbox of the agent
	second        sandboxes.Sandbox // sandbox of a separate verifier while it runs
	session       *gate.Session
	handler       sessionHandler
	clock         stopwatch
	serviceGroups []*serviceGroup // services of both sandboxes
	touched       atomic.Bool     // the agent has run in its sandbox
	surveyed      bool            // survey has run
	at            string          // the last phase that ended
	absent        map[string]bool // programs of verifiers that were missing before the first agent ran
	absentUsers   map[string]bool // users of steps that were missing before the first agent ran
	spared        bool            // Spare was called, so KillAll leaves the main container's own command running
	left          bool            // processes that the last agent left run on
}

// Run executes the rollout. Its error is an *ends.Broken, also after a panic, or the
// context's cause. The
// record has the result then, too, since a cancelled rollout has both. In every case
// its sandboxes are closed when it returns.
func (r *Rollout) Run(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			why := fmt.Sprintf("panic: %v", p)
			r.Record.Log.Error().Str("stack", string(debug.Stack())).Msg(why)
			r.close(ctx)
			err = &ends.Broken{Fault: schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "%s", why)}
		}
	}()
	err = r.execute(ctx)
	r.close(ctx)
	var stop *ends.Failed
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &stop):
		r.Record.End(schema.StatusFailed, stop.Fault)
	default:
		var broken *ends.Broken
		if !errors.As(err, &broken) {
			broken = &ends.Broken{Fault: schema.Faultf("sandbox", schema.CodeInternal, schema.WhoSandbox, "%v", err)}
			broken.Fault.Retryable = true
		}
		return broken
	}
	result := r.Record.Result()
	r.Record.Events.Emit(&schema.Event{Type: schema.EventResult, Result: &result})
	return nil
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
	var stop *ends.Failed
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
		return ends.Fail(ends.UserFault(err))
	}
	r.Record.Agent(r.agent.Version)
	if q.Task.Bundle == "" {
		r.bundle = &tasks.Bundle{}
	} else if r.bundle, err = r.Services.Bundle(ctx, q.Task.Bundle); err != nil {
		var bad *tasks.BundleError
		if errors.As(err, &bad) {
			return ends.Fail(schema.Faultf("upload", schema.CodeBadBundle, schema.WhoTask, "task.bundle: %v", err))
		}
		return err
	}
	r.steps = r.plan()
	for _, s := range r.steps {
		if r.agent.Solution && !r.bundle.Has(s.solution+"/solve.sh") {
			return ends.Fail(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "agent.name: %q needs %s, which the task does not have", r.agent.Name, s.artifact("solution/solve.sh")))
		}
		if v := s.Verify; v != nil && v.By == "" && v.Run == "" && s.script == "" && !v.Bundled {
			return ends.Fail(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "verify: the task's bundle has no %s", s.artifact("tests/test.sh")))
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
func (r *Rollout) upload(ctx context.Context, _ *record.Phase) error {
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
		err := r.phase(ctx, name, 0, func(ctx context.Context, p *record.Phase) error {
			exit, err := r.command(ctx, r.sandbox, p, sandboxes.Cmd{Args: shell(c.Run), Env: c.Env, User: c.User, Timeout: max(left, time.Second)})
			if err == nil && !exit.OK() {
				err = ends.Fail(schema.Faultf(name, schema.CodeSetup, schema.WhoTask, "%s of %q: %s", exit, schema.Clip(c.Run, 200), schema.Clip(p.Tail(), 2000)))
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
func (r *Rollout) command(ctx context.Context, sb sandboxes.Sandbox, p *record.Phase, c sandboxes.Cmd) (schema.Exit, error) {
	c.Stdout, c.Stderr = p.Output("stdout"), p.Output("stderr")
	proc, err := r.start(ctx, sb, p.Name, c)
	if err != nil {
		return schema.Exit{}, err
	}
	if p.Exit, err = await(ctx, proc); err != nil {
		return schema.Exit{}, ends.BlameCommand(p.Name, err)
	}
	return *p.Exit, nil
}

// close ends the session and the sandboxes, even after the context has ended.
func (r *Rollout) close(ctx context.Context) {
	if r.session != nil {
		r.session.Close()
		r.Record.Calls.Settle()
		stats, committed := r.session.Stats()
		for i := range committed {
			c := &committed[i]
			c.Shard = cmp.Or(r.Request.Gate.Routes[c.Tag].Shard, r.Request.Shard)
		}
		r.Record.Spent(stats, committed, r.session.Edits())
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

// noteLimit notes a limit of the request that is not enforced. Limits that the
// request does not name get no note.
func (r *Rollout) noteLimit(s *schema.SandboxChoice, limit, text string) {
	named := map[string]bool{schema.LimitCPUs: s.CPUs > 0, schema.LimitMemory: s.MemoryBytes > 0, schema.LimitDisk: s.DiskBytes > 0, schema.LimitPids: s.Pids > 0}
	if named[limit] {
		r.Record.Note("%s", text)
	}
}
