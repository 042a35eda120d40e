package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turngate/turngate/internal/rollout/agentrun"
	"github.com/turngate/turngate/internal/rollout/collect"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/verify"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// stepper runs the steps of a rollout.
type stepper struct {
	place *place.Place
	rec   *record.Record
	runs  *agentrun.Runs
	ask   verify.Ask
	ran   []stepped // the first steps, which have ended

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
	for _, s := range r.place.Steps {
		done := stepped{Step: s}
		done.result.Name = s.Name
		err := r.place.Stages.BlameRuin(s.Phase("agent"), r.step(ctx, &done))
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
		done.result.Fault = spoiled.Fault(r.place.Stages.Last())
	} else {
		r.rec.Note("%s: %v", r.place.Stages.Last(), spoiled)
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
	if err := r.place.Survey(ctx); err != nil {
		return err
	}
	done.result.Separation = r.place.Separation(s)
	if err := prepare(ctx, r.place, s); err != nil {
		return err
	}
	if err := r.place.CheckServices(ctx); err != nil {
		return err
	}
	out, err := r.runs.Run(ctx, s)
	done.result.Exit, done.result.Fault, done.result.FirstCall, done.result.LastCall = out.Exit, out.Fault, out.FirstCall, out.LastCall
	if err != nil {
		return err
	}
	left := verify.NewLeft(r.place, s, out.Exit)
	kept, err := collect.Step(ctx, r.place, s, out.Log, func(ctx context.Context) error {
		if err := left.End(ctx); err != nil {
			return err
		}
		return r.runs.Leave(ctx)
	})
	defer func() {
		for _, k := range kept {
			k.Close()
		}
	}()
	if err != nil || s.Verify == nil {
		return err
	}
	r.verified = true
	verdict, err := verify.Run(ctx, verify.Task{Place: r.place, Step: s, Left: left, Kept: kept, Exit: out.Exit, Fault: out.Fault, Ask: r.ask})
	done.result.Reward, done.result.Rewards, done.verified = verdict.Reward, verdict.Rewards, verdict.Known
	return err
}

// total computes the reward of the steps that ran together.
func (r *stepper) total() error {
	counted := r.ran
	if r.place.Request.StepReward == schema.StepRewardFinal {
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
