package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/internal/runner"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks/job"
	"github.com/turngate/turngate/trainer"
)

// begin makes the folder of a new job. It checks all tasks and flags first. A task
// that cannot run becomes a trial with a fault, unless no task can run.
func (f *runFlags) begin(cmd *cobra.Command, paths, argv []string) (*job.Job, *work, error) {
	list, err := f.choose(cmd, paths)
	if err != nil {
		return nil, nil, err
	}
	p := job.Plan{
		Version: version, Flags: asked(cmd.Flags()), Args: paths, Argv: argv, Agent: f.agent, Model: f.model.model, Backend: f.sandbox, Attempts: f.group, Parallel: f.parallel,
	}
	for _, l := range list {
		if err := p.AddTask(f.name, job.Task{Name: l.name, Dir: l.dir, Source: l.source, Digest: l.digest}); err != nil {
			return nil, nil, usage("--name: %w", err)
		}
	}
	w := f.requests(list, p.Trials, argv)
	if len(w.names) == 0 {
		return nil, nil, refusal(w.faultsOf(p.Trials))
	}
	for i := range p.Trials {
		p.Trials[i].Fault = w.faults[p.Trials[i].Rollout]
	}
	j, err := job.Create(f.job.dir(list, f.agent), p)
	if errors.Is(err, job.ErrNotEmpty) {
		return nil, nil, usage("--out: %w; go on with a job by --resume", err)
	}
	return j, w, err
}

// resume opens an existing job to continue it.
func (f *runFlags) resume(cmd *cobra.Command, paths, argv []string) (_ *job.Job, _ *work, err error) {
	j, err := job.Open(f.job.resume)
	if err != nil {
		return nil, nil, usage("--resume: %w", err)
	}
	defer func() {
		if err != nil {
			j.Close()
		}
	}()
	if err := again(cmd.Flags(), j.Plan.Flags); err != nil {
		return nil, nil, err
	}
	missing := slices.DeleteFunc(j.Missing(), func(t job.Trial) bool { return t.Fault != nil })
	var rerun []job.Trial
	if len(f.job.rerun) > 0 {
		for _, t := range j.WithFault(func(fault *schema.Fault) bool {
			return slices.Contains(f.job.rerun, "any") || slices.Contains(f.job.rerun, fault.Code)
		}) {
			next, err := t.Next()
			if err != nil {
				return nil, nil, err
			}
			rerun = append(rerun, next)
		}
		missing = j.InOrder(append(missing, rerun...))
	}
	var list []loaded
	for _, t := range missing {
		if t.Index > 0 && len(list) > 0 && list[len(list)-1].dir == t.Dir {
			continue
		}
		l := f.loadTask(cmd, t.Dir, t.Source)
		if l.err == nil && t.Fault == nil && l.digest != t.Digest {
			l.err = fmt.Errorf("task %s was changed since the job began: start a new job", t.Dir)
		}
		list = append(list, l)
	}
	if err := f.open(cmd, list); err != nil {
		return nil, nil, err
	}
	w := f.requests(list, missing, j.Plan.Argv)
	could := slices.DeleteFunc(slices.Clone(missing), func(t job.Trial) bool { return t.Fault != nil })
	if err := refusal(w.faultsOf(could)); err != nil {
		return nil, nil, err
	}
	if len(f.job.rerun) > 0 {
		for i := range rerun {
			t := &rerun[i]
			t.Fault, t.Digest = w.faults[t.Rollout], w.digests[t.Dir]
		}
		if err := j.Rerun(rerun); err != nil {
			return nil, nil, err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s with a fault run again\n", plural(len(rerun), "trial"))
	}
	return j, w, nil
}

// work holds the rollouts that are to run.
type work struct {
	groups  []runner.Group
	answers map[schema.ID]trainer.Answerer
	names   map[schema.ID]string        // displayed name of each rollout
	stopped []schema.ID                 // earlier rollouts of the same trials
	faults  map[schema.ID]*schema.Fault // of the trials that cannot run
	digests map[string]string           // of the tasks, by their folders
}

// faultsOf returns the faults of the trials that cannot run.
func (w *work) faultsOf(trials []job.Trial) (out []*schema.Fault) {
	for _, t := range trials {
		if f := w.faults[t.Rollout]; f != nil {
			out = append(out, f)
		}
	}
	return out
}

func (w *work) all() []schema.Request {
	var out []schema.Request
	for _, g := range w.groups {
		out = append(out, g.Requests...)
	}
	return out
}

// requests makes the requests of the trials, or the faults of the ones that
// cannot run.
func (f *runFlags) requests(list []loaded, trials []job.Trial, argv []string) *work {
	w := &work{answers: map[schema.ID]trainer.Answerer{}, names: map[schema.ID]string{}, faults: map[schema.ID]*schema.Fault{}, digests: map[string]string{}}
	at := map[string]*loaded{}
	for i, l := range list {
		at[l.dir], w.digests[l.dir] = &list[i], l.digest
	}
	last := ""
	for _, t := range trials {
		l := at[t.Dir]
		r, err := f.requestOf(l, t, argv)
		if err != nil {
			w.faults[t.Rollout] = l.fault(err)
			continue
		}
		if t.Group != last || len(w.groups) == 0 {
			w.groups = append(w.groups, runner.Group{Bundle: l.task.Bundle})
			last = t.Group
		}
		g := &w.groups[len(w.groups)-1]
		g.Requests = append(g.Requests, r)
		w.answers[r.ID], w.names[r.ID] = l.answer, t.Name
		w.stopped = append(w.stopped, t.Stopped...)
	}
	return w
}

// requestOf returns the request of a trial.
func (f *runFlags) requestOf(l *loaded, t job.Trial, argv []string) (schema.Request, error) {
	if l.err != nil {
		return schema.Request{}, l.err
	}
	r, err := f.request(l.task, argv)
	if err == nil {
		r.Group, r.Index, r.ID = t.Group, t.Index, t.Rollout
		err = r.Validate()
	}
	if err != nil {
		return r, fmt.Errorf("task %s: %w", l.task.Dir, err)
	}
	return r, nil
}

// run starts a new job or resumes one.
func (f *runFlags) run(cmd *cobra.Command, paths, argv []string) error {
	start := f.begin
	if f.job.resume != "" {
		start = f.resume
	}
	j, w, err := start(cmd, paths, argv)
	if err != nil {
		return err
	}
	defer j.Close()
	stderr := cmd.ErrOrStderr()
	if err := j.PutFaults(cmd.Context()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "job %s: %d of %s to run\n", shown(j.Dir), len(w.names), plural(len(j.Plan.Trials), "trial"))
	if len(w.names) > 0 {
		if f.nats.url == "" {
			fmt.Fprintln(stderr, networksOf(w.all()))
		}
		err = f.work(cmd, j, w)
	}
	if terr := j.Tell(true); err == nil {
		err = terr
	}
	results := j.Results()
	summary := job.Sum(len(j.Plan.Trials), results)
	if err != nil {
		printSummary(stderr, summary)
		fmt.Fprintf(stderr, "go on with: turngate run --resume %s\n", shown(j.Dir))
		return err
	}
	if err := printResults(cmd.OutOrStdout(), f.output, results, j.Plan.Names()); err != nil {
		return err
	}
	printSummary(stderr, summary)
	if summary.Faults() > 0 {
		return &exitError{code: exitFault}
	}
	return nil
}

func (f *runFlags) work(cmd *cobra.Command, j *job.Job, w *work) error {
	c := progress.Config{Out: plain.Raw(cmd.ErrOrStderr())} // the bar moves the cursor
	if isTerminal(os.Stderr) {
		c.Size = func() (columns, rows int) {
			columns, rows, err := term.GetSize(int(os.Stderr.Fd()))
			if err != nil {
				return 80, 24
			}
			return columns, rows
		}
	}
	pg := progress.New(c)
	stderr := cmd.ErrOrStderr()
	cmd.SetErr(plain.NewWriter(pg)) // log lines appear above the bar
	defer cmd.SetErr(stderr)
	log := logger(cmd)
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	b, closeAll, err := f.connect(ctx, j, fail, log)
	if err != nil {
		return storeFailed(ctx, err)
	}
	defer closeAll()
	t, err := trainer.Dial(ctx, trainer.Config{Broker: b, Name: f.name, Shard: "job-" + j.Plan.ID.String(), Tools: f.tools(), Log: log})
	if err != nil {
		return storeFailed(ctx, err)
	}
	defer t.Close()
	pg.Begin(len(j.Plan.Trials), w.names, j.Results())
	defer pg.End()
	err = runner.Run(ctx, runner.Config{
		Trainer: t, Job: j, Progress: pg, Groups: w.groups, Answers: w.answers, Stopped: w.stopped, Adopt: f.job.resume != "", Remote: f.nats.url != "",
	})
	return storeFailed(ctx, err)
}

// shown returns a path relative to the working directory, if it is below that.
func shown(dir string) string {
	if here, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(here, dir); err == nil && filepath.IsLocal(rel) {
			return rel
		}
	}
	return dir
}
