package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/toolserver"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// runAgent runs the agent until it ends, its time is over, or the gate ends it.
// A failure of the agent becomes a fault in the result; the verifier runs all
// the same.
func (r *Rollout) runAgent(ctx context.Context, s *step) error {
	return r.phase(ctx, s.phase("agent"), 0, func(ctx context.Context, p *record.Phase) error {
		launch, err := r.openGate(ctx, s)
		if err != nil {
			return err
		}
		cmd, err := r.agentCommand(ctx, s, launch)
		if err != nil {
			return err
		}
		network, allow := r.Request.AgentNetwork(&s.Step)
		if err := r.setNetwork(ctx, r.sandbox, p.Name, network, allow); err != nil {
			return err
		}
		log := r.Record.AgentLog(p, r.agent.ParseEvent)
		s.log = log
		cmd.Stdout, cmd.Stderr = log.Stdout, log.Stderr
		before := r.touched.Swap(true)
		proc, err := r.sandbox.Start(ctx, cmd)
		var none *sandboxes.NoCommandError
		if errors.As(err, &none) {
			none := fmt.Errorf("agent %s: %w", r.agent.Name, none)
			if before {
				return &ends.Spoiled{Err: none}
			}
			return ends.Fail(schema.Faultf("agent", schema.CodeMissing, schema.WhoUser, "%v", none))
		}
		if err != nil {
			return err
		}
		exit, fault, err := r.watch(ctx, s, proc)
		log.Finish()
		p.Exit, s.result.Exit = exit, exit
		if r.session != nil {
			r.session.Close()
			if last := r.session.Calls(); last >= s.result.FirstCall {
				s.result.LastCall = last
			} else {
				s.result.FirstCall = 0
			}
		}
		if err != nil {
			return err
		}
		s.result.Fault = r.agentFault(s, *exit, fault, log)
		return nil
	})
}

// openGate opens the step's session if the agent calls a model. Call numbers
// continue from one step to the next.
func (r *Rollout) openGate(ctx context.Context, s *step) (agents.Launch, error) {
	q := &r.Request
	l := agents.Launch{
		Model: q.Model.Name, Instruction: s.Instruction, SystemPrompt: q.Agent.SystemPrompt, MaxTurns: q.Agent.MaxTurns,
		Args: q.Agent.Args, MCP: q.Agent.MCP, Dir: agentDir, Installed: mountedAgents, Helper: sandboxes.HelperPath,
	}
	if r.agent.Dialect == "" {
		return l, nil
	}
	if q.Mode == schema.ModeBlack {
		var err error
		l.BaseURL, err = r.routeTo(ctx, r.upstream.URL)
		l.Key = r.upstream.Key
		r.Record.Secret(l.Key)
		return l, err
	}
	answers, err := r.answerers()
	if err != nil {
		return l, err
	}
	before := r.session
	r.session = gate.Open(ctx, gate.Config{
		Rollout: q.ID, Attempt: r.Attempt, ModelName: q.Model.Name, Options: q.Gate, Model: answers, Dialects: gate.Dialects(), Tag: r.agent.Tag, Memory: r.Memory, Tools: q.Agent.Tools, CallTool: r.Services.Tool,
		Observer: r.Record.Calls, Timing: r.Timing, Before: before, Log: r.Record.Log,
	})
	r.Record.Secret(r.session.Key())
	r.clock.tell(r.session.Suspend)
	s.result.FirstCall = r.session.Calls() + 1
	r.handler.session.Store(r.session)
	if r.handler.url == "" {
		if r.handler.url, err = r.sandbox.Forward(ctx, &r.handler); err != nil {
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

// sessionHandler is the handler that the sandbox's forward serves. It passes
// requests to the session of the current step.
type sessionHandler struct {
	session atomic.Pointer[gate.Session]
	url     string // URL in the sandbox
}

func (h *sessionHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.session.Load().ServeHTTP(w, r)
}

func (r *Rollout) agentCommand(ctx context.Context, s *step, l agents.Launch) (sandboxes.Cmd, error) {
	user := s.User
	files := r.sandbox.Files()
	if err := files.Mkdir(ctx, l.Dir, 0o700, user); err != nil {
		return sandboxes.Cmd{}, err
	}
	if r.agent.Files != nil {
		all, err := r.agent.Files(l)
		if err != nil {
			return sandboxes.Cmd{}, err
		}
		for path, f := range all {
			if err := files.Write(ctx, path, f.Data, f.Mode, user); err != nil {
				return sandboxes.Cmd{}, err
			}
		}
	}
	if err := r.giveSkills(ctx, user); err != nil {
		return sandboxes.Cmd{}, err
	}
	c := r.agent.Command(l)
	env := map[string]string{}
	for _, m := range []map[string]string{c.Env, r.Request.Agent.Env, s.Env} {
		for k, v := range m {
			env[k] = v
		}
	}
	if err := r.equip(ctx, l.Dir, user, env); err != nil {
		return sandboxes.Cmd{}, err
	}
	if r.agent.Solution { // the agent is a script of the task
		if err := clear(ctx, files, "/solution"); err != nil {
			return sandboxes.Cmd{}, err
		}
		if err := r.put(ctx, r.sandbox, s.solution, "/solution", user); err != nil {
			return sandboxes.Cmd{}, err
		}
		content, _ := r.bundle.Read(s.solution + "/solve.sh")
		script, err := r.script(ctx, r.sandbox, "/solution/solve.sh", content, user)
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
func (r *Rollout) watch(ctx context.Context, s *step, p sandboxes.Process) (*schema.Exit, *schema.Fault, error) {
	done := waitFor(p)
	limit := ms(s.AgentMS)
	start, suspendedBefore := time.Now(), r.clock.suspendedFor()
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
			return r.ended(stop(ctx, p, done))
		case <-ctx.Done():
			w := stop(ctx, p, done)
			return w.exit, nil, context.Cause(ctx)
		case <-timer.C:
			paused := r.clock.suspendedFor() - suspendedBefore
			if r.session != nil {
				paused = r.session.Paused()
			}
			if left := limit + paused - time.Since(start); left > 0 {
				timer.Reset(max(left, 10*time.Millisecond))
				continue
			}
			w := stop(ctx, p, done)
			if w.err == nil {
				w.exit.TimedOut = true
			}
			return w.exit, nil, w.err
		}
	}
}

// ended returns the agent's exit, with the session's fault if the gate has one.
// The faults CodeNoTrainer and CodeBadAnswer end the rollout.
func (r *Rollout) ended(w waited) (*schema.Exit, *schema.Fault, error) {
	if r.session == nil {
		return w.exit, nil, w.err
	}
	fault := r.session.Fault()
	if fault != nil && (fault.Code == schema.CodeNoTrainer || fault.Code == schema.CodeBadAnswer) {
		return w.exit, nil, ends.Fail(fault)
	}
	return w.exit, fault, w.err
}

// agentFault returns the fault of a failed agent, or nil.
func (r *Rollout) agentFault(s *step, exit schema.Exit, gate *schema.Fault, log *record.AgentLog) *schema.Fault {
	why := log.Why()
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
	case r.session != nil && r.session.ContextFull():
		return schema.Faultf("agent", schema.CodeContext, schema.WhoAgent, "%s after a model call that was longer than the model's context%s", exit, why)
	case !exit.OK():
		return schema.Faultf("agent", schema.CodeExit, schema.WhoAgent, "%s%s", exit, why)
	case log.Failed():
		return schema.Faultf("agent", schema.CodeAgentError, schema.WhoAgent, "it ended with status 0 after an error%s", why)
	case r.session != nil && s.result.FirstCall == 0 && !r.agent.AnyProgram:
		return schema.Faultf("agent", schema.CodeNoCalls, schema.WhoAgent, "it ended with status 0 without a call to its model, so the reward is not the model's%s", why)
	default:
		return nil
	}
}
