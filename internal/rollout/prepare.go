package rollout

import (
	"context"
	"strings"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// prepare checks the agent's user. It also prepares a step of several.
func prepare(ctx context.Context, p *place.Place, s *plan.Step) error {
	if err := p.CheckUser(ctx, s); err != nil || s.Name == "" {
		return err
	}
	err := p.Stages.Run(ctx, s.Phase("upload"), p.Request.Limits.SetupMS, func(ctx context.Context, _ *record.Phase) error { return upload(ctx, p, s) })
	if err != nil {
		return err
	}
	if err := setup(ctx, p, s); err != nil {
		return err
	}
	return p.Healthy(ctx, s.Phase("healthcheck"), s.Healthcheck, s.User)
}

// upload clears the log folders and the verifier's files of the step
// before, and copies this step's files into the working directory.
func upload(ctx context.Context, p *place.Place, s *plan.Step) error {
	if s.Index > 0 {
		if err := p.Main.Enter(ctx, s.Phase("setup"), p.Request.Sandbox.Network, p.Request.Sandbox.Allow); err != nil {
			return err
		}
		stale := []string{place.AgentDir, place.AgentLogs, place.Published}
		if before := p.Steps[s.Index-1]; before.Verify != nil && !before.Apart() {
			stale = append(stale, "/tests", tasks.VerifierDir)
		}
		for _, dir := range stale {
			if err := place.Clear(ctx, p.Main.Files(), dir); err != nil {
				return err
			}
		}
		if err := p.MakeLogs(ctx, s.User); err != nil {
			return err
		}
	}
	if s.Folder != "" {
		return p.Put(ctx, p.Main, s.Folder, p.Main.Workdir(), s.User)
	}
	return nil
}

// setup runs the step's setup.sh in the working directory. As in Harbor a
// script for any shell is run by bash; others have their own interpreter.
func setup(ctx context.Context, p *place.Place, s *plan.Step) error {
	script := p.Bundle.File(s.Folder + "/setup.sh")
	if script == nil {
		return nil
	}
	return p.Stages.Run(ctx, s.Phase("setup"), 0, func(ctx context.Context, ph *record.Phase) error {
		args, err := place.Script(ctx, p.Stages.Record, p.Main, strings.TrimSuffix(p.Main.Workdir(), "/")+"/setup.sh", script, s.User)
		if err != nil {
			return err
		}
		shell, err := place.ForShell(script)
		if err != nil {
			return err
		}
		if shell {
			args = append(place.BashOrSh(), args[len(args)-1])
		}
		exit, err := p.Command(ctx, p.Main, ph, sandboxes.Cmd{Args: args, User: s.User, Timeout: stage.MS(p.Request.Limits.SetupMS)})
		if err == nil && !exit.OK() {
			err = ends.Fail(schema.Faultf("setup", schema.CodeSetup, schema.WhoTask, "%s of setup.sh: %s", exit, schema.Clip(ph.Tail(), 2000)))
		}
		return err
	})
}
