package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// rules are the rules that the flags set, with the tasks that they loaded.
type rules struct {
	jobs.Rules
	cmd     *cobra.Command
	flags   *runFlags
	answers map[string]trainer.Answerer // by model; none: each task has its own
	loaded  []*tasks.Task
}

// rules opens the answerers of the flags.
func (f *runFlags) rules(cmd *cobra.Command, argv []string) (*rules, error) {
	answers, err := f.answerers()
	if err != nil {
		return nil, usageOf(err)
	}
	r := &rules{cmd: cmd, flags: f, answers: answers}
	r.Rules = jobs.Rules{
		Trainer: f.name, Load: r.load, Answer: r.answer,
		Request: func(t *tasks.Task, v jobs.Variant) (schema.Request, error) { return f.request(t, v, argv) },
	}
	return r, nil
}

// answerers opens the answerers of the models in this process, by their names. Without
// a model the name is empty. There is none if each task has its own, or if the worker
// asks an upstream.
func (f *runFlags) answerers() (map[string]trainer.Answerer, error) {
	known := map[string]models.Upstream{}
	if f.upstreams != "" {
		list, err := loadUpstreams(f.upstreams)
		if err != nil {
			return nil, err
		}
		for _, u := range list {
			known[u.Name] = u
		}
	}
	asksServer := strings.HasPrefix(f.answerer.trainer, "upstream:")
	gate := schema.Mode(f.mode) == schema.ModeGate
	switch {
	case !gate && len(f.model) == 0:
		return nil, usage("--mode: %s needs --model, the name of an upstream", f.mode)
	case gate && len(f.model) > 0 && !asksServer && (f.upstreams == "" || f.answerer.trainer != ""):
		return nil, usage("--model: %q is not valid: want it with --trainer upstream:URL, or with --upstreams and without --trainer", f.model[0])
	}
	out := map[string]trainer.Answerer{}
	if gate && len(f.model) == 0 && f.answerer.trainer != "" {
		var err error
		out[""], err = f.answerer.open("")
		return out, err
	}
	for _, name := range f.model {
		u, ok := known[name]
		switch {
		case gate && asksServer:
			var err error
			if out[name], err = f.answerer.open(name); err != nil {
				return nil, err
			}
		case f.upstreams != "" && !ok:
			return nil, usage("--model: %q is not valid: want an upstream in %s", name, f.upstreams)
		case gate:
			f.answerer.see(name, u.Look)
			out[name] = f.answerer.asking(u.Answer)
		}
	}
	return out, nil
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

// printMissing names the variables that the loaded tasks were not given.
func (r *rules) printMissing() { printMissing(r.cmd.ErrOrStderr(), r.loaded...) }

// answer returns the answerer of the flags, or that of the task's replay.yaml.
func (r *rules) answer(t *tasks.Task, v jobs.Variant) (trainer.Answerer, error) {
	spec, err := agents.Find(agents.All(), v.Agent)
	if err != nil {
		return nil, usageOf(err)
	}
	if shared := r.answers[v.Model]; shared != nil || spec.Dialect == "" || schema.Mode(r.flags.mode) != schema.ModeGate {
		return shared, nil
	}
	script, err := t.ReplayScript()
	if err != nil {
		return nil, err
	}
	if script == nil {
		return nil, fmt.Errorf("%s has no replay.yaml: name an answerer of the model calls: --trainer replay:FILE, --trainer upstream:URL, or --upstreams FILE with --model NAME", t.Dir)
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
		return f.answerer.tools()
	}
	return f.answerer.tools(f.recorded.Request.Agent.Tools...)
}
