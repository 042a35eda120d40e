package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/tasks/job"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trainer/replay"
)

// loaded is a task with its answerer, or with the error for which it cannot run.
type loaded struct {
	dir    string      // absolute
	name   string      // of the task
	source string      // name of the folder of tasks around it
	task   *tasks.Task // nil: it does not load
	answer trainer.Answerer
	digest string
	err    error
}

// names returns the names that --filter and --exclude match.
func (l loaded) names() []string {
	return []string{filepath.Base(l.dir), l.name}
}

// choose finds and loads the tasks of a new job.
func (f *runFlags) choose(cmd *cobra.Command, paths []string) ([]loaded, error) {
	if f.recorded != nil {
		list := []loaded{f.loadRecorded()}
		return list, f.open(cmd, list)
	}
	dirs, err := taskDirs(paths)
	if err != nil {
		return nil, err
	}
	given := map[string]bool{}
	for _, p := range paths {
		given[filepath.Clean(p)] = true
	}
	all := make([]loaded, 0, len(dirs))
	for _, dir := range dirs {
		source := ""
		if !given[filepath.Clean(dir)] {
			at, err := filepath.Abs(filepath.Dir(dir))
			if err != nil {
				return nil, usage("%w", err)
			}
			source = filepath.Base(at)
		}
		abs, err := filepath.Abs(dir)
		all = append(all, loaded{dir: abs, source: source, name: tasks.Name(abs), err: err})
	}
	chosen := job.Of(f.job.choice(cmd), all, loaded.names)
	if len(chosen) == 0 {
		return nil, usage("--filter, --exclude: none of %s is left", plural(len(all), "task"))
	}
	for i, l := range chosen {
		if err := cmd.Context().Err(); err != nil {
			return nil, err
		}
		if l.err == nil {
			chosen[i] = f.loadTask(cmd, l.dir, l.source)
		}
	}
	return chosen, f.open(cmd, chosen)
}

func (f *runFlags) loadTask(cmd *cobra.Command, dir, source string) loaded {
	abs, err := filepath.Abs(dir)
	l := loaded{dir: abs, name: tasks.Name(abs), source: source, err: err}
	if l.err != nil {
		return l
	}
	var bundle []byte
	if l.task, l.err = f.taskEnv.load(cmd, dir, f.verifier); l.err == nil {
		bundle = l.task.Bundle
	}
	l.digest, err = job.Digest(abs, bundle)
	if l.err == nil {
		l.err = err
	}
	return l
}

// loadRecorded returns the task of a recorded rollout.
func (f *runFlags) loadRecorded() loaded {
	sum := sha256.Sum256(f.recorded.Bundle)
	return loaded{dir: f.recorded.Dir, name: f.recorded.Request.Task.Name, task: f.recorded, digest: hex.EncodeToString(sum[:])}
}

// tools returns the tools of a recorded rollout.
func (f *runFlags) tools() map[string]trainer.Tool {
	if f.recorded == nil {
		return f.model.tools()
	}
	return f.model.tools(f.recorded.Request.Agent.Tools...)
}

// fault returns the fault of a trial whose task cannot run.
func (l *loaded) fault(err error) *schema.Fault {
	who := schema.WhoTask
	if l.task != nil { // the task is valid, but not with these flags
		who = schema.WhoUser
	}
	return schema.Faultf("load", schema.CodeInvalid, who, "%v", err)
}

// open sets the answerer of each task, or the error for which it has none.
func (f *runFlags) open(cmd *cobra.Command, list []loaded) error {
	spec, err := agents.Find(agents.All(), f.agent)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	shared, err := f.model.open()
	if err != nil {
		return err
	}
	var all []*tasks.Task
	for i := range list {
		l := &list[i]
		if l.err != nil {
			continue
		}
		all = append(all, l.task)
		for _, w := range l.task.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", oneLine(l.task.Dir, 200), oneLine(w, 400))
		}
		l.answer = shared
		if shared != nil || spec.Dialect == "" || schema.Mode(f.mode) != schema.ModeGate {
			continue
		}
		script, err := l.task.ReplayScript()
		if err != nil {
			l.err = err
			continue
		}
		if script == nil {
			l.err = fmt.Errorf("%s has no replay.yaml: name an answerer of the model calls: --trainer replay:FILE or --trainer upstream:URL", l.task.Dir)
			continue
		}
		s, err := replay.Parse(script)
		if err != nil {
			l.err = fmt.Errorf("task %s: replay.yaml: %w", l.task.Dir, err)
			continue
		}
		l.answer = trainer.Whole(s.Answer)
	}
	tellMissing(cmd.ErrOrStderr(), all...)
	return nil
}

// maxWrong is the largest number of tasks with a mistake that an error lists.
const maxWrong = 20

// refusal returns a usage error that lists the faults of tasks, each once, up to
// maxWrong. It is nil without faults.
func refusal(faults []*schema.Fault) error {
	var list []string
	for _, f := range faults {
		if !slices.Contains(list, f.Message) {
			list = append(list, f.Message)
		}
	}
	if more := len(list) - maxWrong; more > 0 {
		list = append(list[:maxWrong], fmt.Sprintf("and %d more tasks are wrong", more))
	}
	if len(list) == 0 {
		return nil
	}
	return usage("%s", strings.Join(list, "\n"))
}

// taskDirs returns the task directories of the paths. A path that does not look
// like a task is a folder of tasks.
func taskDirs(paths []string) ([]string, error) {
	var out []string
	var wrong []error
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		if !info.IsDir() {
			wrong = append(wrong, fmt.Errorf("%s is not a task directory", p))
			continue
		}
		list, err := os.ReadDir(p)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		var inside []string
		for _, d := range list {
			if at := filepath.Join(p, d.Name()); tasks.IsTask(at) {
				inside = append(inside, at)
			}
		}
		if tasks.IsTask(p) || len(inside) == 0 {
			out = append(out, p)
		} else {
			out = append(out, inside...)
		}
	}
	if len(wrong) > 0 {
		return nil, &exitError{exitUsage, errors.Join(wrong...)}
	}
	return out, nil
}
