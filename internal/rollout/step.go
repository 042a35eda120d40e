package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/rollout/agentrun"
	"github.com/turngate/turngate/internal/rollout/collect"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/internal/rollout/verify"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// stepper runs the steps of a rollout.
type stepper struct {
	*place.Place
	rec  *record.Record
	runs *agentrun.Runs
	ask  verify.Ask
	ran  []stepped // the first steps, which have ended

	verified bool // a verifier has begun
}

// stepped is a step that has ended.
type stepped struct {
	*plan.Step
	result   schema.StepResult
	verified bool
}

// all runs the steps in order until one ends the rollout. A failure of a
// named step that the task or the agent caused is recorded as that step's
// result.
func (r *stepper) all(ctx context.Context) error {
	for _, s := range r.Steps {
		done := stepped{Step: s}
		done.result.Name = s.Name
		err := r.Stages.BlameRuin(s.Phase("agent"), r.step(ctx, &done))
		if ctx.Err() == nil {
			err = r.blame(&done, err)
		}
		r.rec.Step(done.result)
		r.ran = append(r.ran, done)
		if err != nil {
			return err
		}
		if s.Name == "" {
			return nil
		}
		if done.result.Fault != nil && !done.verified {
			break
		}
		if why := done.tooLow(); why != "" {
			r.rec.Log.Info().Str("step", s.Name).Msg(why)
			r.rec.Note("step %s: %s, so the steps after it did not run", s.Name, why)
			break
		}
	}
	return r.total()
}

// blame records an error of a step as its fault if the task or the agent caused it. It
// returns an error that ends the rollout.
func (r *stepper) blame(done *stepped, err error) error {
	var stop *ends.Failed
	if done.Name != "" && errors.As(err, &stop) && (stop.Fault.Who == schema.WhoTask || stop.Fault.Who == schema.WhoAgent) {
		if done.result.Fault == nil {
			done.result.Fault = stop.Fault
		}
		return nil
	}
	var spoiled *ends.Spoiled
	if !errors.As(err, &spoiled) {
		return err
	}
	if done.result.Fault == nil {
		done.result.Fault = spoiled.Fault(r.Stages.Last())
	} else {
		r.rec.Note("%s: %v", r.Stages.Last(), spoiled)
	}
	return nil
}

// tooLow returns the reason if a reward of the step is below its minimum, which
// ends the rollout. Otherwise it returns "".
func (s *stepped) tooLow() string {
	for key, least := range s.MinReward {
		got, ok := s.result.Rewards[key]
		switch {
		case !ok:
			return fmt.Sprintf("it has no reward %q, of which at least %v is wanted", key, least)
		case got < least:
			return fmt.Sprintf("its reward %q is %v, below %v", key, got, least)
		}
	}
	return ""
}

// step prepares a step, runs the agent, keeps artifacts and verifies.
func (r *stepper) step(ctx context.Context, done *stepped) error {
	s := done.Step
	if err := r.Survey(ctx); err != nil {
		return err
	}
	done.result.Separation = r.Separation(s)
	if err := r.prepare(ctx, s); err != nil {
		return err
	}
	if err := r.CheckServices(ctx); err != nil {
		return err
	}
	out, err := r.runs.Run(ctx, s)
	done.result.Exit, done.result.Fault, done.result.FirstCall, done.result.LastCall = out.Exit, out.Fault, out.FirstCall, out.LastCall
	if err != nil {
		return err
	}
	left := verify.NewLeft(r.Place, s, out.Exit)
	kept, err := collect.Step(ctx, r.Place, s, out.Log, func(ctx context.Context) error {
		if err := left.End(ctx); err != nil {
			return err
		}
		return r.runs.Leave(ctx)
	})
	if err != nil || s.Verify == nil {
		return err
	}
	r.verified = true
	verdict, err := verify.Run(ctx, verify.Task{Place: r.Place, Step: s, Left: left, Kept: kept, Exit: out.Exit, Fault: out.Fault, Ask: r.ask})
	done.result.Reward, done.result.Rewards, done.verified = verdict.Reward, verdict.Rewards, verdict.Known
	return err
}

// prepare checks the agent's user. It also prepares a step of several.
func (r *stepper) prepare(ctx context.Context, s *plan.Step) error {
	if err := r.CheckUser(ctx, s); err != nil || s.Name == "" {
		return err
	}
	err := r.Stages.Run(ctx, s.Phase("upload"), r.Request.Limits.SetupMS, func(ctx context.Context, _ *record.Phase) error { return r.upload(ctx, s) })
	if err != nil {
		return err
	}
	if err := r.setup(ctx, s); err != nil {
		return err
	}
	return r.Healthy(ctx, s.Phase("healthcheck"), s.Healthcheck, s.User)
}

// upload clears the log folders and the verifier's files of the step
// before, and copies this step's files into the working directory.
func (r *stepper) upload(ctx context.Context, s *plan.Step) error {
	if s.Index > 0 {
		if err := r.Main.Enter(ctx, s.Phase("setup"), r.Request.Sandbox.Network, r.Request.Sandbox.Allow); err != nil {
			return err
		}
		stale := []string{place.AgentDir, place.AgentLogs, place.Published}
		if before := r.Steps[s.Index-1]; before.Verify != nil && !before.Apart() {
			stale = append(stale, "/tests", tasks.VerifierDir)
		}
		for _, dir := range stale {
			if err := place.Clear(ctx, r.Main.Files(), dir); err != nil {
				return err
			}
		}
		if err := r.MakeLogs(ctx, s.User); err != nil {
			return err
		}
	}
	if s.Folder != "" {
		return r.Put(ctx, r.Main, s.Folder, r.Main.Workdir(), s.User)
	}
	return nil
}

// setup runs the step's setup.sh in the working directory. As in Harbor a
// script for any shell is run by bash; others have their own interpreter.
func (r *stepper) setup(ctx context.Context, s *plan.Step) error {
	script := r.Bundle.File(s.Folder + "/setup.sh")
	if script == nil {
		return nil
	}
	return r.Stages.Run(ctx, s.Phase("setup"), 0, func(ctx context.Context, p *record.Phase) error {
		args, err := r.Script(ctx, r.Main, strings.TrimSuffix(r.Main.Workdir(), "/")+"/setup.sh", script, s.User)
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
		exit, err := r.Command(ctx, r.Main, p, sandboxes.Cmd{Args: args, User: s.User, Timeout: stage.MS(r.Request.Limits.SetupMS)})
		if err == nil && !exit.OK() {
			err = ends.Fail(schema.Faultf("setup", schema.CodeSetup, schema.WhoTask, "%s of setup.sh: %s", exit, schema.Clip(p.Tail(), 2000)))
		}
		return err
	})
}

// total computes the reward of the steps that ran together.
func (r *stepper) total() error {
	counted := r.ran
	if r.Request.StepReward == schema.StepRewardFinal {
		counted = counted[len(counted)-1:]
	}
	counted = slices.DeleteFunc(slices.Clone(counted), func(s stepped) bool { return !s.verified })
	if len(counted) == 0 {
		for _, s := range r.ran {
			if s.result.Fault != nil {
				return ends.Fail(s.result.Fault)
			}
		}
		return nil
	}
	sums, key := map[string]float64{}, ""
	for _, s := range counted {
		for k, v := range s.result.Rewards {
			sums[k] += v
		}
		if key == "" {
			key = s.Verify.RewardKey
		}
	}
	for k := range sums {
		sums[k] /= float64(len(counted))
	}
	headline, err := tasks.Headline(sums, key)
	r.rec.Reward(headline, sums)
	if err != nil {
		return ends.Fail(schema.Faultf("verify", schema.CodeNoReward, schema.WhoTask, "the rewards of the steps together: %v", err))
	}
	if headline == nil {
		verify.NoteHeadless(r.rec, "the steps together", sums)
	}
	return nil
}
