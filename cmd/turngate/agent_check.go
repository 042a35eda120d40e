package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/taskcheck"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/trainer"
)

// agentCheck runs `agent ls --check`: the smallest rollout of each installed
// agent.
type agentCheck struct {
	check        bool
	run          runFlags
	agentTimeout time.Duration
}

func (f *agentCheck) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.check, "check", false, "run the smallest rollout of each installed agent, with a scripted model, and say whether it works")
	addSandbox(fl, &f.run.sandbox, &f.run.image, "with --check: ", "")
	f.run.backends.add(fl, "with --check: ")
	fl.VarP(newCount(&f.run.parallel, 2), "parallel", "j", "with --check: agents at once")
	fl.DurationVar(&f.agentTimeout, "agent-timeout", 2*time.Minute, "with --check: how long each agent may take")
}

type agentState struct {
	spec    agents.Spec
	seconds float64
	why     string
	err     error
}

// installed lists the agents that can run on this host and need no further
// settings.
func (f *agentCheck) installed(dir string) (out []*agentState) {
	for _, s := range agents.All() {
		if s.Dialect != "" && !s.AnyProgram && (len(s.Packages) == 0 || (agents.Cache{Dir: dir}).Installed(s)) {
			out = append(out, &agentState{spec: s})
		}
	}
	return out
}

// checkFlags returns all errors in these flags.
func (f *agentCheck) checkFlags(*cobra.Command, []string) error {
	wrong := []error{f.run.backends.check()}
	if f.agentTimeout <= 0 {
		wrong = append(wrong, fmt.Errorf("--agent-timeout: %s is not valid: want a time above 0", f.agentTimeout))
	}
	if hasImages(f.run.sandbox) && f.run.image == "" {
		wrong = append(wrong, fmt.Errorf("--image: the %s sandbox needs one, such as --image debian:bookworm-slim", f.run.sandbox))
	}
	return usageOf(wrong...)
}

func (f *agentCheck) checkAll(cmd *cobra.Command, dir string) error {
	script, err := replay.Parse([]byte(taskcheck.AgentScript))
	if err != nil {
		return err
	}
	f.run.name, f.run.agents = "local", dir
	f.run.chooseSandbox(cmd, nil)
	ctx, s, err := openSingles(cmd.Context(), &f.run, trainer.Whole(script.Answer), logger(cmd))
	if err != nil {
		return err
	}
	defer s.close()
	list := f.installed(dir)
	slots := make(chan struct{}, f.run.parallel)
	var bg sync.WaitGroup
	for _, a := range list {
		bg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			f.one(ctx, s, a)
		})
	}
	bg.Wait()
	w := newTable(cmd.OutOrStdout(), "AGENT", "VERSION", "SPEAKS", "SECONDS", "STATE")
	w.cut = []string{"STATE"}
	for _, a := range list {
		state := "ok"
		if a.why != "" {
			state = oneLine(a.why, 160)
		}
		w.row(a.spec.Name, dash(a.spec.Version), dash(a.spec.Dialect), fmt.Sprintf("%.1f", a.seconds), state)
		err = errors.Join(err, a.err)
	}
	if ferr := w.flush(); err != nil || ferr != nil {
		return errors.Join(err, ferr)
	}
	for _, a := range list {
		if a.why != "" && !w.shows(a.why) {
			fmt.Fprintf(cmd.OutOrStdout(), "\n%s: %s\n", a.spec.Name, safeText(a.why))
		}
	}
	if slices.ContainsFunc(list, func(a *agentState) bool { return a.why != "" }) {
		return &exitError{code: exitFault}
	}
	return nil
}

func (f *agentCheck) one(ctx context.Context, s *singles, a *agentState) {
	q := taskcheck.AgentRequest(a.spec.Name, f.run.sandbox, f.agentTimeout)
	q.Sandbox.Image, q.Trainer, q.Group = f.run.image, f.run.name, jobs.NewGroup()
	if q.ID, a.err = jobs.RolloutID(f.run.name, q.Group, 0); a.err != nil {
		return
	}
	start := time.Now()
	res, err := s.run(ctx, q, nil)
	a.seconds = time.Since(start).Seconds()
	if a.err = err; err == nil {
		a.why = taskcheck.JudgeAgent(&res)
	}
}
