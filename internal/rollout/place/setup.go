package place

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Healthy runs a health check until it passes once. If it fails Retries times
// in a row after the start period, it returns a fault of the task. Nil: there is none.
func (p *Place) Healthy(ctx context.Context, name string, check *schema.Healthcheck, user string) error {
	if check == nil {
		return nil
	}
	h := check.WithDefaults()
	return p.Stages.Run(ctx, name, 0, func(ctx context.Context, ph *record.Phase) error {
		ran := p.Stages.Clock.Watch()
		for failures := 0; ; {
			age := ran()
			exit, err := p.Command(ctx, p.Main, ph, sandboxes.Cmd{Args: Bash(h.Run), User: user, Timeout: stage.MS(h.TimeoutMS)})
			if err != nil || exit.OK() {
				return err
			}
			pause := stage.MS(h.StartIntervalMS)
			if age >= stage.MS(h.StartPeriodMS) {
				pause = stage.MS(h.IntervalMS)
				if failures++; failures >= h.Retries {
					return ends.Fail(schema.Faultf("healthcheck", schema.CodeSetup, schema.WhoTask, "%s of %q, after %d failures in a row: %s",
						exit, schema.Clip(h.Run, 200), failures, schema.Clip(ph.Tail(), 2000)))
				}
			}
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return context.Cause(ctx)
			}
		}
	})
}

// prepare prepares the new sandbox for the first step: it uploads files, waits for the
// health check and runs the setup.
func (p *Place) prepare(ctx context.Context) error {
	q := p.Request
	if err := p.Stages.Run(ctx, "upload", q.Limits.SetupMS, p.upload); err != nil {
		return err
	}
	if err := p.Healthy(ctx, "healthcheck", q.Healthcheck, ""); err != nil {
		return err
	}
	return p.setup(ctx)
}

// upload copies the task's own files into the working directory, unless they were the
// context of an image or belong to a compose file. Then it makes the folders of logs.
func (p *Place) upload(ctx context.Context, _ *record.Phase) error {
	owner := plan.UserOf(p.Request, p.Request.Agent.User)
	if p.Bundle.Has("environment") && !p.Bundle.Has("environment/Dockerfile") && !p.Bundle.Has("environment/docker-compose.yaml") {
		if err := p.Put(ctx, p.Main, "environment", p.Main.Workdir(), owner); err != nil {
			return err
		}
	}
	return p.MakeLogs(ctx, owner)
}

// Put copies a folder of the bundle into a sandbox.
func (p *Place) Put(ctx context.Context, sb sandboxes.Sandbox, from, to, owner string) error {
	packed, err := p.Bundle.Tar(from)
	if err != nil {
		return err
	}
	if err := sb.Files().TarIn(ctx, to, packed, owner); err != nil {
		return fmt.Errorf("put %s into the sandbox: %w", from, err)
	}
	return nil
}

// setup runs the task's setup commands. A failed command ends the rollout.
func (p *Place) setup(ctx context.Context) error {
	left := stage.MS(p.Request.Limits.SetupMS)
	for i, c := range p.Request.Setup {
		name := fmt.Sprintf("setup[%d]", i)
		ran := p.Stages.Clock.Watch()
		err := p.Stages.Run(ctx, name, 0, func(ctx context.Context, ph *record.Phase) error {
			exit, err := p.Command(ctx, p.Main, ph, sandboxes.Cmd{Args: Shell(c.Run), Env: c.Env, User: c.User, Timeout: max(left, time.Second)})
			if err == nil && !exit.OK() {
				err = ends.Fail(schema.Faultf(name, schema.CodeSetup, schema.WhoTask, "%s of %q: %s", exit, schema.Clip(c.Run, 200), schema.Clip(ph.Tail(), 2000)))
			}
			return err
		})
		if err != nil {
			return err
		}
		left -= ran()
	}
	return nil
}

// Command runs one command of the task to its end.
func (p *Place) Command(ctx context.Context, sb sandboxes.Sandbox, ph *record.Phase, c sandboxes.Cmd) (schema.Exit, error) {
	c.Stdout, c.Stderr = ph.Output("stdout"), ph.Output("stderr")
	proc, err := p.Start(ctx, sb, ph.Name, c)
	if err != nil {
		return schema.Exit{}, err
	}
	if ph.Exit, err = stage.Await(ctx, proc); err != nil {
		return schema.Exit{}, ends.BlameCommand(ph.Name, err)
	}
	return *ph.Exit, nil
}

// Start starts a command of the task. In the agent's sandbox it runs in "/" if
// the agent has put something else in place of the working directory.
func (p *Place) Start(ctx context.Context, sb sandboxes.Sandbox, phase string, c sandboxes.Cmd) (sandboxes.Process, error) {
	proc, err := sb.Start(ctx, c)
	var none *sandboxes.NoCommandError
	if !errors.As(err, &none) {
		return proc, err
	}
	if p.Stages.Touched.Load() && sb == sandboxes.Sandbox(p.Main) {
		if info, serr := sb.Files().Stat(ctx, sb.Workdir()); c.Dir == "" && (serr != nil || !info.Mode.IsDir()) {
			p.Stages.Record.Note("the agent left no working directory %s: the commands after it ran in /", sb.Workdir())
			c.Dir = "/"
			return p.Start(ctx, sb, phase, c)
		}
		if p.survey == nil || !p.survey.absent[c.Args[0]] {
			return nil, &ends.Spoiled{Err: none}
		}
	}
	return nil, ends.Fail(schema.Faultf(phase, schema.CodeMissing, schema.WhoTask, "%v", none))
}

// MakeLogs makes the log folders that a task may expect. They are empty and
// writable by every user, because the agent and the verifier may be different
// users. Files of the image in these folders are removed.
//
// Only root may rename them, so that a process of the agent cannot take the place of
// the verifier's folder.
func (p *Place) MakeLogs(ctx context.Context, owner string) error {
	files := p.Main.Files()
	if err := files.Mkdir(ctx, path.Dir(tasks.VerifierDir), 0o755, "root"); err != nil {
		return err
	}
	for _, dir := range []string{AgentLogs, Published, tasks.VerifierDir} {
		if err := files.Empty(ctx, dir, 0o777, owner); err != nil {
			return err
		}
	}
	return nil
}

// Abs returns the absolute form of a path in a sandbox, which may be relative to the
// working directory.
func Abs(sb sandboxes.Sandbox, at string) string {
	if !path.IsAbs(at) {
		at = path.Join("/", sb.Workdir(), at)
	}
	return path.Clean(at)
}

// Clear empties a folder. The folder may itself be a mount, which cannot be
// removed.
func Clear(ctx context.Context, files sandboxes.Files, dir string) error {
	if err := files.Remove(ctx, dir); err == nil {
		return nil
	}
	return files.Empty(ctx, dir, 0o755, "")
}
