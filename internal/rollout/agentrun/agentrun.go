// Package agentrun runs an agent in a sandbox: it opens a session of the gate, starts
// the agent and watches it.
package agentrun

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/internal/toolserver"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Config connects an agent to its rollout.
type Config struct {
	Place  *place.Place
	Models *models.Models
	Timing gate.Timing
	Memory *gate.Memory // shared by the gates of a worker; nil: the gate's own
	// Tool makes the trainer run one of its tools.
	Tool         func(ctx context.Context, c schema.ToolCall) (schema.ToolResult, error)
	TraceContent bool                // add the texts of calls to their spans
	CallMetrics  *traces.CallMetrics // nil: calls are not measured
	Person       Person              // is the agent agents.Person; nil: there is none
}

// Person does a task at a terminal. A call begins one run: it returns
// the streams of the run, and a function to call at its end.
type Person func() (s Streams, end func())

// Streams are the ends of a run at its person.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Terminal       *sandboxes.Terminal // nil: they are no terminal
}

// Runs has the runs of an agent in one rollout, and the sessions of the gate that they
// use. The caller calls Close.
type Runs struct {
	Config
	q       *schema.Request
	agent   *agents.Spec
	stages  *stage.Stages
	rec     *record.Record
	session *gate.Session // of the last run; nil: the agent calls no model
	handler sessionHandler
}

// New returns the runs of an agent, of which none has begun.
func New(c Config) *Runs {
	rec := c.Place.Stages.Record
	return &Runs{Config: c, q: c.Place.Request, agent: &c.Place.Agent, stages: c.Place.Stages, rec: rec, handler: sessionHandler{metrics: rec.Telemetry}}
}

// Close ends the last session and records the calls of all.
func (r *Runs) Close() {
	if r.session == nil {
		return
	}
	r.session.Close()
	r.rec.Calls.Wait()
	stats, committed := r.session.Stats()
	for i := range committed {
		c := &committed[i]
		c.Shard = cmp.Or(r.q.Gate.Routes[c.Tag].Shard, r.q.Shard)
	}
	r.rec.Spent(stats, committed, r.session.Edits())
}

// Outcome is the end of a run.
type Outcome struct {
	Exit  *schema.Exit // nil: unknown
	Fault *schema.Fault
	// FirstCall and LastCall are the numbers of the run's model calls; 0: it made none.
	FirstCall, LastCall int
	Log                 *record.AgentLog // nil: the agent did not start
}

// Run runs the agent for a step until it ends, its time is over, or the gate ends it.
// A failure of the agent is a fault in the outcome.
func (r *Runs) Run(ctx context.Context, s *plan.Step) (out Outcome, err error) {
	err = r.stages.Run(ctx, s.Phase("agent"), 0, func(ctx context.Context, p *record.Phase) (err error) {
		traces.Note(ctx, "invoke_agent "+r.agent.Name, traces.Operation.String("invoke_agent"), traces.AgentName.String(r.agent.Name), traces.AgentVersion.String(r.agent.Version),
			traces.Provider.String("turngate"), traces.Conversation.String(string(r.q.ID)), traces.RequestModel.String(r.q.Model.Name))
		out, err = r.run(ctx, s, p)
		return err
	})
	return out, err
}

func (r *Runs) run(ctx context.Context, s *plan.Step, p *record.Phase) (out Outcome, err error) {
	launch, err := r.openGate(ctx, s)
	if err != nil {
		return out, err
	}
	if r.session != nil {
		out.FirstCall = r.session.Calls() + 1
	}
	proc, log, err := r.start(ctx, s, p, launch)
	if err != nil {
		return out, err
	}
	out.Log = log
	exit, fault, err := r.watch(ctx, s, proc)
	log.Finish()
	p.Exit, out.Exit = exit, exit
	if r.session != nil {
		r.session.Close()
		if out.LastCall = r.session.Calls(); out.LastCall < out.FirstCall {
			out.FirstCall, out.LastCall = 0, 0
		}
	}
	if err == nil {
		out.Fault = r.faultOf(s, &out, fault)
	}
	return out, err
}

// start starts the agent.
func (r *Runs) start(ctx context.Context, s *plan.Step, p *record.Phase, launch agents.Launch) (sandboxes.Process, *record.AgentLog, error) {
	cmd, err := r.command(ctx, s, launch)
	if err != nil {
		return nil, nil, err
	}
	network, allow := r.q.AgentNetwork(&s.Step)
	if err := r.Place.Main.Enter(ctx, p.Name, network, allow); err != nil {
		return nil, nil, err
	}
	log := r.rec.AgentLog(p, r.agent.ParseEvent)
	cmd.Stdout, cmd.Stderr = log.Stdout, log.Stderr
	end := func() {}
	if r.agent.Person {
		if end, err = r.attach(&cmd); err != nil {
			return nil, nil, err
		}
	}
	before := r.stages.Touched.Swap(true)
	proc, err := r.Place.Main.Start(ctx, cmd)
	if err != nil {
		end()
	}
	var none *sandboxes.NoCommandError
	if errors.As(err, &none) {
		none := fmt.Errorf("agent %s: %w", r.agent.Name, none)
		if before {
			return nil, nil, &ends.Spoiled{Err: none}
		}
		return nil, nil, ends.Fail(schema.Faultf("agent", schema.CodeMissing, schema.WhoUser, "%v", none))
	}
	return ending{proc, end}, log, err
}

// attach connects a command to the person. Its output is kept in the agent's log, too.
func (r *Runs) attach(cmd *sandboxes.Cmd) (end func(), err error) {
	if r.Person == nil {
		return nil, ends.Fail(ends.UserFault(&schema.InvalidError{Field: "agent.name", Value: r.agent.Name, Want: "another agent: nobody is at a terminal of this worker"}))
	}
	s, end := r.Person()
	cmd.Stdin, cmd.Terminal, cmd.OutputLimit = s.Stdin, s.Terminal, math.MaxInt64
	cmd.Stdout, cmd.Stderr = io.MultiWriter(s.Stdout, cmd.Stdout), io.MultiWriter(s.Stderr, cmd.Stderr)
	return end, nil
}

// ending is a process with an end that is reported once its exit is known.
type ending struct {
	sandboxes.Process
	end func()
}

func (p ending) Wait() (schema.Exit, error) {
	defer p.end()
	return p.Process.Wait()
}

// openGate opens the step's session if the agent calls a model. Call numbers
// continue from one step to the next.
func (r *Runs) openGate(ctx context.Context, s *plan.Step) (agents.Launch, error) {
	q := r.q
	l := agents.Launch{
		Model: q.Model.Name, Instruction: s.Instruction, SystemPrompt: q.Agent.SystemPrompt, MaxTurns: q.Agent.MaxTurns,
		Args: q.Agent.Args, MCP: q.Agent.MCP, Dir: place.AgentDir, Installed: place.Installed, Helper: sandboxes.HelperPath,
	}
	if r.agent.Dialect == "" {
		return l, nil
	}
	if q.Mode == schema.ModeBlack {
		up, err := r.Models.Upstream()
		if err != nil {
			return l, ends.Fail(ends.UserFault(err))
		}
		l.Key = up.Key
		r.rec.Secret(l.Key)
		l.BaseURL, err = r.routeTo(ctx, up.URL)
		return l, err
	}
	answers, err := r.Models.Answering()
	if err != nil {
		return l, err
	}
	calls := traced{answers, ctx, q, r.rec, r.CallMetrics, r.TraceContent}
	before := r.session
	r.session = gate.Open(ctx, gate.Config{
		Rollout: q.ID, Attempt: r.Place.Attempt, ModelName: q.Model.Name, Options: q.Gate, Model: calls, Dialects: gate.Dialects(), Tag: r.agent.Tag, Memory: r.Memory, Tools: q.Agent.Tools, CallTool: calls.tool(r.Tool),
		Observer: r.rec.Calls, Timing: r.Timing, Before: before, Log: r.rec.Log,
	})
	r.rec.Secret(r.session.Key())
	r.stages.Clock.Notify(r.session.Suspend)
	r.handler.session.Store(r.session)
	if r.handler.url == "" {
		if r.handler.url, err = r.Place.Main.Forward(ctx, &r.handler); err != nil {
			return l, err
		}
	}
	l.BaseURL, l.Key = r.handler.url, r.session.Key()
	if len(q.Agent.Tools) > 0 {
		l.MCP = append(slices.Clip(l.MCP), schema.MCPServer{
			Name: schema.ToolServer, Command: []string{sandboxes.HelperPath, "tools"},
			Env: map[string]string{toolserver.EnvURL: l.BaseURL + gate.ToolsPath, toolserver.EnvKey: l.Key},
		})
	}
	return l, nil
}

func (r *Runs) command(ctx context.Context, s *plan.Step, l agents.Launch) (sandboxes.Cmd, error) {
	user := s.User
	files := r.Place.Main.Files()
	if err := files.Mkdir(ctx, l.Dir, 0o700, user); err != nil {
		return sandboxes.Cmd{}, err
	}
	if r.agent.Files != nil {
		all, err := r.agent.Files(l)
		if err != nil {
			return sandboxes.Cmd{}, err
		}
		for path, f := range all {
			if err := files.Write(ctx, path, bytes.NewReader(f.Data), f.Mode, user); err != nil {
				return sandboxes.Cmd{}, err
			}
		}
	}
	if err := r.giveSkills(ctx, user); err != nil {
		return sandboxes.Cmd{}, err
	}
	c := r.agent.Command(l)
	env := sandboxes.Environment(c.Env, r.q.Agent.Env, s.Env)
	if err := r.equip(ctx, l.Dir, user, env); err != nil {
		return sandboxes.Cmd{}, err
	}
	if r.agent.Solution { // the agent is a script of the task
		if err := place.Clear(ctx, files, "/solution"); err != nil {
			return sandboxes.Cmd{}, err
		}
		if err := r.Place.Put(ctx, r.Place.Main, s.Solution, "/solution", user); err != nil {
			return sandboxes.Cmd{}, err
		}
		script, err := place.Script(ctx, r.Place.Stages.Record, r.Place.Main, "/solution/solve.sh", r.Place.Bundle.File(s.Solution+"/solve.sh"), user)
		if err != nil {
			return sandboxes.Cmd{}, err
		}
		c.Args = append(script, c.Args[1:]...)
		if _, ok := env["DEBIAN_FRONTEND"]; !ok {
			env["DEBIAN_FRONTEND"] = "noninteractive"
		}
	}
	return sandboxes.Cmd{Args: c.Args, Env: env, User: user, Stdin: strings.NewReader(c.Stdin), Untrusted: true}, nil
}

// watch waits for the agent. The exit is nil if it is unknown. The agent's time
// limit does not count time in which every open call waits for a trainer that
// is absent or holds the rollout.
func (r *Runs) watch(ctx context.Context, s *plan.Step, p sandboxes.Process) (*schema.Exit, *schema.Fault, error) {
	done := stage.WaitFor(p)
	limit := stage.MS(s.AgentMS)
	start, suspendedBefore := time.Now(), r.stages.Clock.SuspendedFor()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var over <-chan struct{}
	if r.session != nil {
		over = r.session.Done()
	}
	for {
		select {
		case w := <-done:
			return r.ended(w)
		case <-over:
			return r.ended(stage.Stop(ctx, p, done))
		case <-ctx.Done():
			w := stage.Stop(ctx, p, done)
			return w.Exit, nil, context.Cause(ctx)
		case <-timer.C:
			paused := r.stages.Clock.SuspendedFor() - suspendedBefore
			if r.session != nil {
				paused = r.session.Paused()
			}
			if left := limit + paused - time.Since(start); left > 0 {
				timer.Reset(max(left, 10*time.Millisecond))
				continue
			}
			w := stage.Stop(ctx, p, done)
			if w.Err == nil {
				w.Exit.TimedOut = true
			}
			return w.Exit, nil, w.Err
		}
	}
}

// ended returns the agent's exit, with the session's fault if the gate has one.
// The faults CodeNoTrainer and CodeBadAnswer end the rollout.
func (r *Runs) ended(w stage.Waited) (*schema.Exit, *schema.Fault, error) {
	if r.session == nil {
		return w.Exit, nil, w.Err
	}
	fault := r.session.Fault()
	if fault != nil && (fault.Code == schema.CodeNoTrainer || fault.Code == schema.CodeBadAnswer) {
		return w.Exit, nil, ends.Fail(fault)
	}
	return w.Exit, fault, w.Err
}

// faultOf returns the fault of a failed agent, or nil. gate is the session's.
func (r *Runs) faultOf(s *plan.Step, out *Outcome, gate *schema.Fault) *schema.Fault {
	exit, why := out.Exit, out.Log.Why()
	var refused *schema.Fault
	if r.session != nil {
		refused = r.session.Refused()
	}
	if refused != nil {
		why = "; its last model call was refused: " + schema.Clip(refused.Message, 1000) + why
	}
	switch {
	case gate != nil:
		return gate
	case exit.TimedOut:
		return schema.Faultf("agent", schema.CodeTimeout, schema.WhoAgent, "no end within %d ms%s", s.AgentMS, why)
	case exit.Disk:
		return schema.Faultf("agent", schema.CodeDisk, schema.WhoAgent, "it wrote more than the sandbox may hold%s", why)
	case exit.OOM:
		return schema.Faultf("agent", schema.CodeOOM, schema.WhoAgent, "it ran out of memory%s", why)
	case r.session != nil && r.session.Limit() != nil:
		return r.session.Limit()
	case refused != nil && refused.Code == schema.CodeContext:
		return schema.Faultf("agent", schema.CodeContext, schema.WhoAgent, "%s after a model call that was longer than the model's context%s", exit, why)
	case refused != nil:
		return schema.Faultf("agent", schema.CodeRefused, schema.WhoAgent, "%s%s", exit, why)
	case !exit.OK():
		return schema.Faultf("agent", schema.CodeExit, schema.WhoAgent, "%s%s", exit, why)
	case out.Log.Failed():
		return schema.Faultf("agent", schema.CodeAgentError, schema.WhoAgent, "it ended with status 0 after an error%s", why)
	case r.session != nil && out.FirstCall == 0 && !r.agent.AnyProgram:
		return schema.Faultf("agent", schema.CodeNoCalls, schema.WhoAgent, "it ended with status 0 without a call to its model, so the reward is not the model's%s", why)
	default:
		return nil
	}
}
