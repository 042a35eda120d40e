package jobs

import (
	"fmt"
	"path/filepath"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// Task is a task of a job.
type Task struct {
	Dir    string // its folder, absolute
	Name   string
	Source string      // name of the folder of tasks around it; empty: none
	Digest string      // sha256 of its files as they are submitted
	Task   *tasks.Task // nil: Begin loads it

	answers map[Variant]trainer.Answerer
	err     error // for which it cannot run
}

// Find returns the tasks at some paths, each of which is the folder of a task or a
// folder of such folders. It does not load them.
func Find(paths []string) ([]Task, error) {
	dirs, err := tasks.Find(paths)
	if err != nil {
		return nil, err
	}
	given := map[string]bool{}
	for _, p := range paths {
		given[filepath.Clean(p)] = true
	}
	out := make([]Task, 0, len(dirs))
	for _, dir := range dirs {
		at, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("find tasks: %w", err)
		}
		t := Task{Dir: at, Name: tasks.Name(at)}
		if !given[filepath.Clean(dir)] {
			t.Source = filepath.Base(filepath.Dir(at))
		}
		out = append(out, t)
	}
	return out, nil
}

// names returns the names that the patterns of a Choice match.
func (t *Task) names() []string { return []string{filepath.Base(t.Dir), t.Name} }

// load loads the task, unless it is loaded.
func (t *Task) load(r *Rules) {
	t.answers = map[Variant]trainer.Answerer{}
	if t.Task != nil {
		return
	}
	var bundle []byte
	if t.Task, t.err = r.Load(t.Dir); t.err == nil {
		bundle = t.Task.Bundle
	}
	var err error
	if t.Digest, err = Digest(t.Dir, bundle); t.err == nil {
		t.err = err
	}
}

// request returns the request of a trial of the task, and keeps the answerer of its
// variant.
func (t *Task) request(r *Rules, of Trial) (schema.Request, error) {
	if t.err != nil {
		return schema.Request{}, t.err
	}
	if _, ok := t.answers[of.Variant]; !ok {
		answer, err := r.Answer(t.Task, of.Variant)
		if err != nil {
			return schema.Request{}, err
		}
		t.answers[of.Variant] = answer
	}
	q, err := r.Request(t.Task, of.Variant)
	if err == nil {
		q.V, q.ID, q.Trainer, q.Group, q.Index = schema.Version, of.Rollout, of.Rollout.Trainer(), of.Group, of.Index
		err = schema.Validate(&q)
	}
	if err != nil {
		return q, fmt.Errorf("task %s: %w", t.Task.Dir, err)
	}
	return q, nil
}

// fault returns the fault of a trial with a task that cannot run.
func (t *Task) fault(err error) *schema.Fault {
	who := schema.WhoTask
	if t.Task != nil { // the task is valid, but its request is not
		who = schema.WhoUser
	}
	return schema.Faultf("load", schema.CodeInvalid, who, "%v", err)
}
