package jobs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// Rules make the rollouts of tasks.
type Rules struct {
	Trainer string // name of the trainer; Begin makes the ids of rollouts with it
	// Load reads a task. Nil: tasks.Load, without variables of this process.
	Load func(dir string) (*tasks.Task, error)
	// Request makes the request of each rollout of a task with a variant. The job sets
	// its ids.
	Request func(t *tasks.Task, v Variant) (schema.Request, error)
	// Answer returns the answerer of the model calls of a task with a variant. A nil
	// function or a nil answerer is for agents that make no call to this process.
	Answer func(t *tasks.Task, v Variant) (trainer.Answerer, error)
}

// check sets the defaults.
func (r *Rules) check() error {
	if r.Load == nil {
		r.Load = func(dir string) (*tasks.Task, error) { return tasks.Load(dir, tasks.Options{}) }
	}
	if r.Answer == nil {
		r.Answer = func(*tasks.Task, Variant) (trainer.Answerer, error) { return nil, nil }
	}
	if r.Request == nil {
		return &schema.InvalidError{Field: "Rules.Request", Value: "nil", Want: "want a function that makes a request of a task"}
	}
	return nil
}

// Work has the trials of a job that are to run.
type Work struct {
	Job   *Job
	Rerun int // trials with a fault that run again

	groups  []group
	trials  map[string]part // by name
	answers map[schema.ID]trainer.Answerer
	names   map[schema.ID]string
	faults  map[schema.ID]*schema.Fault // of the trials that cannot run
	// stopped are earlier rollouts of the same trials, which are cancelled first:
	// the process that stopped them may have ended before its cancel arrived.
	stopped []schema.ID
	// adopt means that an earlier process may have submitted the rollouts.
	adopt bool
}

// part is the request of a trial, with the files of its task.
type part struct {
	bundle  []byte
	request schema.Request
	answer  trainer.Answerer
}

// group has the rollouts of one task with one variant.
type group struct {
	bundle   []byte // the task's files; empty: none
	requests []schema.Request
}

// Begin makes the folder of a new job for the tasks, of which each has
// Plan.Attempts trials for each of Plan.Variants. A task that cannot run has trials that end with a fault. If
// no task can run, the error is a *RefusedError and there is no folder. The caller
// closes the Job of the Work.
func Begin(ctx context.Context, dir string, p Plan, list []Task, r Rules) (*Work, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	switch {
	case len(list) == 0:
		return nil, &schema.InvalidError{Field: "tasks", Value: "none", Want: "want at least one"}
	case p.Attempts < 1:
		return nil, &schema.InvalidError{Field: "Plan.Attempts", Value: strconv.Itoa(p.Attempts), Want: "want at least 1"}
	}
	if err := p.checkVariants(); err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	for i := range list {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		list[i].load(&r)
		if err := p.AddTask(r.Trainer, list[i]); err != nil {
			return nil, err
		}
	}
	w := newWork(list, p.Trials, &r)
	if len(w.names) == 0 {
		return nil, &RefusedError{w.faultsOf(p.Trials)}
	}
	for i := range p.Trials {
		p.Trials[i].Fault = w.faults[p.Trials[i].Rollout]
	}
	var err error
	if w.Job, err = Create(dir, p); err != nil {
		return nil, err
	}
	if err := w.Job.storeFaults(ctx); err != nil {
		w.Job.Close()
		return nil, err
	}
	return w, nil
}

// Resume returns the trials of a job without a result, and those with a fault that
// rerun selects; nil selects none. A task that has changed since the job began is an
// error, except for the trials of rerun. The error is a *RefusedError if a trial
// could run when the job began and cannot now.
func Resume(ctx context.Context, j *Job, r Rules, rerun func(*schema.Result) bool) (*Work, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	missing := slices.DeleteFunc(j.Missing(), cannotRun)
	var again []Trial
	if rerun != nil {
		for _, t := range j.withFault(rerun) {
			next, err := t.Next()
			if err != nil {
				return nil, err
			}
			again = append(again, next)
		}
		missing = j.ordered(append(missing, again...))
	}
	list, err := tasksOf(ctx, missing, &r)
	if err != nil {
		return nil, err
	}
	w := newWork(list, missing, &r)
	w.Job, w.Rerun, w.adopt = j, len(again), true
	if faults := w.faultsOf(slices.DeleteFunc(slices.Clone(missing), cannotRun)); len(faults) > 0 {
		return nil, &RefusedError{faults}
	}
	if len(again) > 0 {
		digests := map[string]string{}
		for _, t := range list {
			digests[t.Dir] = t.Digest
		}
		for i := range again {
			t := &again[i]
			t.Fault, t.Digest = w.faults[t.Rollout], digests[t.Dir]
		}
		if err := j.Rerun(again); err != nil {
			return nil, err
		}
	}
	return w, j.storeFaults(ctx)
}

// cannotRun reports whether a trial could not run when the job began.
func cannotRun(t Trial) bool { return t.Fault != nil }

// tasksOf loads the tasks of the trials.
func tasksOf(ctx context.Context, trials []Trial, r *Rules) (list []Task, err error) {
	for _, of := range trials {
		if len(list) > 0 && list[len(list)-1].Dir == of.Dir {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		t := Task{Dir: of.Dir, Name: of.Task, Source: of.Source}
		if t.load(r); t.err == nil && of.Fault == nil && t.Digest != of.Digest {
			t.err = fmt.Errorf("task %s was changed since the job began: start a new job", of.Dir)
		}
		list = append(list, t)
	}
	return list, nil
}

// newWork makes the requests of the trials, or the faults of the ones that cannot
// run.
func newWork(list []Task, trials []Trial, r *Rules) *Work {
	w := &Work{trials: map[string]part{}, answers: map[schema.ID]trainer.Answerer{}, names: map[schema.ID]string{}, faults: map[schema.ID]*schema.Fault{}}
	at := map[string]*Task{}
	for i, t := range list {
		at[t.Dir] = &list[i]
	}
	for _, of := range trials {
		t := at[of.Dir]
		q, err := t.request(r, of)
		if err != nil {
			w.faults[of.Rollout] = t.fault(err)
			continue
		}
		w.trials[of.Name] = part{t.Task.Bundle, q, t.answers[of.Variant]}
		w.answers[q.ID], w.names[q.ID] = t.answers[of.Variant], of.Name
		w.stopped = append(w.stopped, of.Stopped...)
	}
	w.groups = w.groupsOf(trials)
	return w
}

// groupsOf returns the requests of the trials that can run, for their rollouts.
func (w *Work) groupsOf(trials []Trial) (list []group) {
	for _, t := range trials {
		p, ok := w.trials[t.Name]
		if !ok {
			continue
		}
		if len(list) == 0 || list[len(list)-1].requests[0].Group != t.Group {
			list = append(list, group{bundle: p.bundle})
		}
		q, g := p.request, &list[len(list)-1]
		q.ID = t.Rollout
		g.requests = append(g.requests, q)
	}
	return list
}

// Names returns the names of the trials that are to run, by their rollouts.
func (w *Work) Names() map[schema.ID]string { return w.names }

// Requests returns the requests of the trials.
func (w *Work) Requests() []schema.Request {
	var out []schema.Request
	for _, g := range w.groups {
		out = append(out, g.requests...)
	}
	return out
}

// faultsOf returns the faults of the trials that cannot run.
func (w *Work) faultsOf(trials []Trial) (out []*schema.Fault) {
	for _, t := range trials {
		if f := w.faults[t.Rollout]; f != nil {
			out = append(out, f)
		}
	}
	return out
}

// RefusedError reports that trials cannot run, with a fault for each.
type RefusedError struct{ Faults []*schema.Fault }

// maxWrong is the largest number of tasks with a mistake that an error lists.
const maxWrong = 20

// Error lists the messages of the faults, each once, on lines of their own.
func (e *RefusedError) Error() string {
	var list []string
	for _, f := range e.Faults {
		if !slices.Contains(list, f.Message) {
			list = append(list, f.Message)
		}
	}
	if more := len(list) - maxWrong; more > 0 {
		list = append(list[:maxWrong], fmt.Sprintf("and %d more tasks are wrong", more))
	}
	return strings.Join(list, "\n")
}
