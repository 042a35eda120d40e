package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trainer/replay"
)

// rules are those of the flags, with the tasks that they loaded.
type rules struct {
	jobs.Rules
	cmd    *cobra.Command
	flags  *runFlags
	spec   agents.Spec
	shared trainer.Answerer // nil: each task has its own
	loaded []*tasks.Task
}

// rules opens the answerer of the flags.
func (f *runFlags) rules(cmd *cobra.Command, argv []string) (*rules, error) {
	spec, err := agents.Find(agents.All(), f.agent)
	if err != nil {
		return nil, usageOf(err)
	}
	shared, err := f.model.open()
	if err != nil {
		return nil, err
	}
	r := &rules{cmd: cmd, flags: f, spec: spec, shared: shared}
	r.Rules = jobs.Rules{
		Trainer: f.name, Load: r.load, Answer: r.answer,
		Request: func(t *tasks.Task) (schema.Request, error) { return f.request(t, argv) },
	}
	return r, nil
}

// load reads a task and prints its warnings.
func (r *rules) load(dir string) (*tasks.Task, error) {
	t, err := r.flags.taskEnv.load(r.cmd, dir, r.flags.verifier)
	if err != nil {
		return nil, err
	}
	r.loaded = append(r.loaded, t)
	for _, w := range t.Warnings {
		fmt.Fprintf(r.cmd.ErrOrStderr(), "%s: %s\n", oneLine(t.Dir, 200), oneLine(w, 400))
	}
	return t, nil
}

// tellMissing names the variables that the loaded tasks were not given.
func (r *rules) tellMissing() { tellMissing(r.cmd.ErrOrStderr(), r.loaded...) }

// answer returns the answerer of the flags, or that of the task's replay.yaml.
func (r *rules) answer(t *tasks.Task) (trainer.Answerer, error) {
	if r.shared != nil || r.spec.Dialect == "" || schema.Mode(r.flags.mode) != schema.ModeGate {
		return r.shared, nil
	}
	script, err := t.ReplayScript()
	if err != nil {
		return nil, err
	}
	if script == nil {
		return nil, fmt.Errorf("%s has no replay.yaml: name an answerer of the model calls: --trainer replay:FILE or --trainer upstream:URL", t.Dir)
	}
	s, err := replay.Parse(script)
	if err != nil {
		return nil, fmt.Errorf("task %s: replay.yaml: %w", t.Dir, err)
	}
	return trainer.Whole(s.Answer), nil
}

// tools returns the tools of a recorded rollout.
func (f *runFlags) tools() map[string]trainer.Tool {
	if f.recorded == nil {
		return f.model.tools()
	}
	return f.model.tools(f.recorded.Request.Agent.Tools...)
}
