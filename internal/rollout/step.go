package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// step is one part of a rollout: a run of the agent and its verification. A
// task without steps has one step without a name.
type step struct {
	schema.Step
	index    int
	last     bool
	tests    []string // folders of the bundle; a later one overrides files of an earlier one
	script   string   // path of the test script in the bundle; empty: none
	solution string   // folder of the bundle
	workdir  string   // folder of the bundle; empty: none

	result   schema.StepResult
	verified bool
	log      *record.AgentLog
	kept     []restorable // artifacts for a separate verifier
}

// phase returns the full name of one of the step's phases.
func (s *step) phase(name string) string {
	if s.Name == "" {
		return name
	}
	return "step/" + s.Name + "/" + name
}

// artifact returns the full name of one of the step's artifacts.
func (s *step) artifact(name string) string {
	if s.Name == "" {
		return name
	}
	return "steps/" + s.Name + "/" + name
}

// separate reports whether the step is verified in a second sandbox.
func (s *step) separate() bool { return s.Verify != nil && s.Verify.Separate != nil }

// plan returns the steps of the request.
func (r *Rollout) plan() []*step {
	q := &r.Request
	if len(q.Steps) == 0 {
		one := &step{
			Step: schema.Step{Instruction: q.Task.Instruction, AgentMS: q.Limits.AgentMS, VerifyMS: q.Limits.VerifyMS, Verify: q.Verify, User: r.userOf(q.Agent.User)},
			last: true, solution: "solution",
		}
		r.findTests(one, "tests")
		return []*step{one}
	}
	var all []*step
	for i, from := range q.Steps {
		s := &step{Step: from, index: i, last: i == len(q.Steps)-1, solution: "solution"}
		s.result.Name = s.Name
		if s.AgentMS == 0 {
			s.AgentMS = q.Limits.AgentMS
		}
		if s.VerifyMS == 0 {
			s.VerifyMS = q.Limits.VerifyMS
		}
		if s.User == "" {
			s.User = r.userOf(q.Agent.User)
		}
		own := "steps/" + s.Name
		if r.bundle.Has(own + "/solution/solve.sh") {
			s.solution = own + "/solution"
		}
		if r.bundle.Has(own + "/workdir") {
			s.workdir = own + "/workdir"
		}
		r.findTests(s, "tests", own+"/tests")
		all = append(all, s)
	}
	return all
}

// userOf returns user or, if it is empty, the sandbox's user.
func (r *Rollout) userOf(user string) string {
	if user != "" {
		return user
	}
	return r.Request.Sandbox.User
}

func (r *Rollout) findTests(s *step, folders ...string) {
	for _, dir := range folders {
		if !r.bundle.Has(dir) {
			continue
		}
		s.tests = append(s.tests, dir)
		if r.bundle.Has(dir + "/test.sh") {
			s.script = dir + "/test.sh"
		}
	}
}

// runSteps runs the steps in order until one ends the rollout. A failure of a
// named step that the task or the agent caused is recorded as that step's
// result.
func (r *Rollout) runSteps(ctx context.Context) error {
	for _, s := range r.steps {
		err := r.blameRuin(s.phase("agent"), r.runStep(ctx, s))
		stepped := s.Name != ""
		var stop *ends.Failed
		if stepped && ctx.Err() == nil && errors.As(err, &stop) && (stop.Fault.Who == schema.WhoTask || stop.Fault.Who == schema.WhoAgent) {
			if s.result.Fault == nil {
				s.result.Fault = stop.Fault
			}
			err = nil
		}
		var spoiled *ends.Spoiled
		if ctx.Err() == nil && errors.As(err, &spoiled) {
			if s.result.Fault == nil {
				s.result.Fault = spoiled.Fault(r.at)
			} else {
				r.Record.Note("%s: %v", r.at, spoiled)
			}
			err = nil
		}
		r.Record.Step(s.result)
		r.ran = append(r.ran, s)
		if err != nil {
			return err
		}
		if !stepped {
			return nil
		}
		if s.result.Fault != nil && !s.verified {
			break
		}
		if why := s.tooLow(); why != "" {
			r.Record.Log.Info().Str("step", s.Name).Msg(why)
			r.Record.Note("step %s: %s, so the steps after it did not run", s.Name, why)
			break
		}
	}
	return r.total()
}

// tooLow returns the reason if a reward of the step is below its minimum, which
// ends the rollout. Otherwise it returns "".
func (s *step) tooLow() string {
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

// runStep prepares a step, runs the agent, keeps artifacts and verifies.
func (r *Rollout) runStep(ctx context.Context, s *step) error {
	q := &r.Request
	if err := r.survey(ctx); err != nil {
		return err
	}
	if err := checkUser(ctx, r.sandbox.Files(), s.phase("agent"), namedUser{s.field("user"), s.User}, r.absentUsers[s.User]); err != nil {
		return err
	}
	if s.Name != "" {
		if err := r.phase(ctx, s.phase("upload"), q.Limits.SetupMS, func(ctx context.Context, _ *record.Phase) error { return r.uploadStep(ctx, s) }); err != nil {
			return err
		}
		if err := r.setupStep(ctx, s); err != nil {
			return err
		}
		if err := r.healthy(ctx, s.phase("healthcheck"), s.Healthcheck, s.User); err != nil {
			return err
		}
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	if err := r.runAgent(ctx, s); err != nil {
		return err
	}
	if err := r.collect(ctx, s); err != nil {
		return err
	}
	if s.Verify == nil {
		return nil
	}
	return r.verify(ctx, s)
}

// uploadStep clears the log folders and the verifier's files of the step
// before, and copies this step's files into the working directory.
func (r *Rollout) uploadStep(ctx context.Context, s *step) error {
	files := r.sandbox.Files()
	if s.index > 0 {
		if err := r.setNetwork(ctx, r.sandbox, s.phase("setup"), r.Request.Sandbox.Network, r.Request.Sandbox.Allow); err != nil {
			return err
		}
		stale := []string{agentDir, agentLogs, published}
		if before := r.steps[s.index-1]; before.Verify != nil && !before.separate() {
			stale = append(stale, "/tests", tasks.VerifierDir)
		}
		for _, dir := range stale {
			if err := clear(ctx, files, dir); err != nil {
				return err
			}
		}
		if err := r.makeLogs(ctx, s.User); err != nil {
			return err
		}
	}
	if s.workdir != "" {
		return r.put(ctx, r.sandbox, s.workdir, r.sandbox.Workdir(), s.User)
	}
	return nil
}

// setupStep runs the step's setup.sh in the working directory. As in Harbor a
// script for any shell is run by bash; others have their own interpreter.
func (r *Rollout) setupStep(ctx context.Context, s *step) error {
	if !r.bundle.Has(s.workdir + "/setup.sh") {
		return nil
	}
	content, _ := r.bundle.Read(s.workdir + "/setup.sh")
	return r.phase(ctx, s.phase("setup"), 0, func(ctx context.Context, p *record.Phase) error {
		timeout := time.Duration(r.Request.Limits.SetupMS) * time.Millisecond
		args, err := r.script(ctx, r.sandbox, strings.TrimSuffix(r.sandbox.Workdir(), "/")+"/setup.sh", content, s.User)
		if err != nil {
			return err
		}
		if forShell(content) {
			args = append(bashOrSh(), args[len(args)-1])
		}
		exit, err := r.command(ctx, r.sandbox, p, sandboxes.Cmd{Args: args, User: s.User, Timeout: timeout})
		if err == nil && !exit.OK() {
			err = ends.Fail(schema.Faultf("setup", schema.CodeSetup, schema.WhoTask, "%s of setup.sh: %s", exit, schema.Clip(p.Tail(), 2000)))
		}
		return err
	})
}

// total computes the reward of the steps that ran together.
func (r *Rollout) total() error {
	last := r.ran[len(r.ran)-1]
	verified := r.ran
	if r.Request.StepReward == schema.StepRewardFinal {
		verified = []*step{last}
	}
	verified = slices.DeleteFunc(slices.Clone(verified), func(s *step) bool { return !s.verified })
	if len(verified) == 0 {
		for _, s := range r.ran {
			if s.result.Fault != nil {
				return ends.Fail(s.result.Fault)
			}
		}
		return nil
	}
	sums, key := map[string]float64{}, ""
	for _, s := range verified {
		for k, v := range s.result.Rewards {
			sums[k] += v
		}
		if key == "" {
			key = s.Verify.RewardKey
		}
	}
	for k := range sums {
		sums[k] /= float64(len(verified))
	}
	headline, err := tasks.Headline(sums, key)
	r.Record.Reward(headline, sums)
	if err != nil {
		return ends.Fail(schema.Faultf("verify", schema.CodeNoReward, schema.WhoTask, "the rewards of the steps together: %v", err))
	}
	if headline == nil {
		r.noteHeadless("the steps together", sums)
	}
	return nil
}
