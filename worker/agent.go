package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/agents/toolserver"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
)

// runAgent runs the agent until it ends, its time is over, or the gate says
// that it must. Its own failure is a fault in the result and no reason not to
// verify.
func (r *Rollout) runAgent(ctx context.Context) error {
	return r.phase(ctx, "agent", 0, func(ctx context.Context, p *phase) error {
		launch, err := r.openGate(ctx)
		if err != nil {
			return err
		}
		cmd, err := r.agentCommand(ctx, launch)
		if err != nil {
			return err
		}
		log := r.rec.agentLog(&p.tail)
		cmd.Stdout, cmd.Stderr = log.out, log.err
		proc, err := r.sandbox.Start(ctx, cmd)
		var none *sandboxes.NoCommandError
		if errors.As(err, &none) {
			return failed(schema.Faultf("agent", schema.CodeMissing, schema.WhoUser, "agent %s: %v", r.agent.Name, none))
		}
		if err != nil {
			return err
		}
		exit, fault, err := r.watch(ctx, proc)
		log.finish()
		p.exit, r.result.Exit = exit, exit
		if r.session != nil {
			r.session.Close()
		}
		if err != nil {
			return err
		}
		r.result.Fault = r.agentFault(*exit, fault, log)
		// Nothing that the agent started is alive when its files are read.
		return r.sandbox.KillAll(ctx)
	})
}

// openGate opens the agent's session, if it calls a model.
func (r *Rollout) openGate(ctx context.Context) (agents.Launch, error) {
	q := &r.Request
	l := agents.Launch{
		Model: q.Model.Name, Instruction: q.Task.Instruction, SystemPrompt: q.Agent.SystemPrompt, MaxTurns: q.Agent.MaxTurns,
		Args: q.Agent.Args, MCP: q.Agent.MCP, Dir: agentDir, Installed: mountedAgents, Helper: sandboxes.HelperPath,
	}
	if r.agent.Dialect == "" {
		return l, nil
	}
	if q.Mode == schema.ModeBlack {
		l.BaseURL, l.Key = r.upstream.URL, r.upstream.Key
		r.rec.setKey(l.Key)
		return l, nil
	}
	answers, err := r.answerers()
	if err != nil {
		return l, err
	}
	r.session = gate.Open(ctx, gate.Config{
		Rollout: q.ID, Attempt: r.Attempt, ModelName: q.Model.Name, Options: q.Gate, Model: answers, Dialects: gate.Dialects(), Tag: r.agent.Tag, Memory: r.Memory, Tools: q.Agent.Tools, CallTool: r.Services.Tool,
		Observer: r.rec, Timing: r.Timing, Log: r.Log,
	})
	r.rec.setKey(r.session.Key())
	r.clock.tell(r.session.Hold)
	base, err := r.sandbox.Forward(ctx, r.session)
	l.BaseURL, l.Key = base, r.session.Key()
	if len(q.Agent.Tools) > 0 {
		l.MCP = append(slices.Clip(l.MCP), schema.MCPServer{
			Name: schema.ToolServer, Command: []string{sandboxes.HelperPath, "tools"},
			Env: map[string]string{toolserver.EnvURL: base + gate.ToolsPath, toolserver.EnvKey: l.Key},
		})
	}
	return l, err
}

func (r *Rollout) agentCommand(ctx context.Context, l agents.Launch) (sandboxes.Cmd, error) {
	user := r.agentUser()
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
	c := r.agent.Command(l)
	env := map[string]string{}
	for _, m := range []map[string]string{c.Env, r.Request.Agent.Env} {
		for k, v := range m {
			env[k] = v
		}
	}
	if r.agent.Solution { // a script of the task's own
		script, _ := r.bundle.Read("solution/solve.sh")
		c.Args = append(scriptArgs("/solution/solve.sh", script), c.Args[1:]...)
	}
	return sandboxes.Cmd{Args: c.Args, Env: env, User: user, Stdin: strings.NewReader(c.Stdin), Untrusted: true}, nil
}

// scriptArgs runs a script of the task: as its first line says, or by sh.
func scriptArgs(path string, content []byte) []string {
	if len(content) > 2 && content[0] == '#' && content[1] == '!' {
		return []string{path}
	}
	return []string{"/bin/sh", path}
}

// watch waits for the agent; the exit is nil when it is not known. The agent's
// clock stands still while every open call waits for a trainer that is absent or
// holds.
func (r *Rollout) watch(ctx context.Context, p sandboxes.Process) (*schema.Exit, *schema.Fault, error) {
	done := waitFor(p)
	limit := time.Duration(r.Request.Limits.AgentMS) * time.Millisecond
	start, heldBefore := time.Now(), r.clock.held()
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
			paused := r.clock.held() - heldBefore
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

// ended tells an agent that ended by itself from one that the gate ended.
func (r *Rollout) ended(w waited) (*schema.Exit, *schema.Fault, error) {
	if r.session == nil {
		return w.exit, nil, w.err
	}
	fault := r.session.Fault()
	if fault != nil && fault.Code == schema.CodeNoTrainer {
		return w.exit, nil, failed(fault)
	}
	return w.exit, fault, w.err
}

// agentFault says how the agent failed; nil when it did not.
func (r *Rollout) agentFault(exit schema.Exit, gate *schema.Fault, log *agentLog) *schema.Fault {
	why := r.rec.why(log)
	switch {
	case gate != nil:
		return gate
	case exit.TimedOut:
		return schema.Faultf("agent", schema.CodeTimeout, schema.WhoAgent, "no end within %d ms%s", r.Request.Limits.AgentMS, why)
	case exit.OOM:
		return schema.Faultf("agent", schema.CodeOOM, schema.WhoAgent, "it ran out of memory%s", why)
	case !exit.OK():
		return schema.Faultf("agent", schema.CodeExit, schema.WhoAgent, "%s%s", exit, why)
	case log.lastError != "":
		return schema.Faultf("agent", schema.CodeAgentError, schema.WhoAgent, "it ended with status 0 after an error%s", why)
	default:
		return nil
	}
}
