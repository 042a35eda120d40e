package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// run starts a new job or resumes one.
func (f *runFlags) run(cmd *cobra.Command, paths, argv []string) error {
	start := f.begin
	if f.job.resume != "" {
		start = f.resume
	}
	w, err := start(cmd, paths, argv)
	if refused := (*jobs.RefusedError)(nil); errors.As(err, &refused) {
		return usage("%w", refused)
	}
	if err != nil {
		return err
	}
	j := w.Job
	defer j.Close()
	stderr, all := cmd.ErrOrStderr(), w.Requests()
	fmt.Fprintf(stderr, "job %s: %d of %s to run\n", shown(j.Dir), len(all), plural(len(j.Plan.Trials), "trial"))
	printNamesakes(stderr, &j.Plan)
	if f.nats.context != "" {
		fmt.Fprintf(stderr, "context %s: workers at %s run them\n", f.nats.context, broker.ShownURL(f.nats.url))
	}
	if len(all) > 0 {
		if f.nats.url == "" {
			fmt.Fprintln(stderr, networksOf(all))
		}
		err = f.work(cmd, w)
	}
	if limit := (*jobs.LimitError)(nil); err != nil && !errors.As(err, &limit) && !errors.Is(err, jobs.ErrCancelled) {
		err = errors.Join(err, j.SetStopped(err))
	}
	return printJobEnd(cmd, f.output, &j.Plan, shown(j.Dir), j.Results(), f.limits.given(), err)
}

// maxNamesakes bounds the lines about tasks of the same name.
const maxNamesakes = 5

// printNamesakes warns of tasks with the same name, most often a copied folder.
func printNamesakes(w io.Writer, p *jobs.Plan) {
	all := p.Namesakes()
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names[:min(len(names), maxNamesakes)] {
		fmt.Fprintf(w, "warning: %d folders have a task named %q, such as %s and %s: tables show the folder, too; `name` in task.toml sets the name\n", len(all[name]), oneLine(name, 60), oneLine(shown(all[name][0]), 200), oneLine(shown(all[name][1]), 200))
	}
	if more := len(names) - maxNamesakes; more > 0 {
		fmt.Fprintf(w, "warning: %s more in several folders\n", plural(more, "name"))
	}
}

// printJobEnd prints the results of a job after the end of its run. stopped is the reason of
// the end; nil: each trial has a result. limits are the flags of the limits that it had. The
// error has the exit status of the run.
func printJobEnd(cmd *cobra.Command, output string, p *jobs.Plan, dir string, results []schema.Result, limits string, stopped error) error {
	stderr, summary := cmd.ErrOrStderr(), jobs.Sum(len(p.Trials), results)
	limit := (*jobs.LimitError)(nil)
	if stopped != nil && !errors.As(stopped, &limit) {
		printSummary(stderr, summary)
		fmt.Fprintf(stderr, "go on with: turngate run --resume %s\n", plain.Arg(dir))
		if errors.Is(stopped, jobs.ErrCancelled) {
			return &exitError{exitInterrupted, stopped}
		}
		return stopped
	}
	if err := printResults(cmd.OutOrStdout(), output, results, p); err != nil {
		return err
	}
	printSummary(stderr, summary)
	printRetries(stderr, p.Causes())
	if err := printComparison(stderr, p, results); err != nil {
		return err
	}
	switch {
	case limit != nil:
		fmt.Fprintf(stderr, "the job stopped before all trials had a result: %s\n", oneLine(limit.Reason, 400))
		fmt.Fprintf(stderr, "go on with a higher limit: turngate run --resume %s%s\n", plain.Arg(dir), limits)
		return &exitError{code: exitLimit}
	case summary.Faults() > 0:
		return &exitError{code: exitFault}
	default:
		return nil
	}
}

// begin makes the folder of a new job.
func (f *runFlags) begin(cmd *cobra.Command, paths, argv []string) (*jobs.Work, error) {
	list, err := f.choose(cmd, paths)
	if err != nil {
		return nil, err
	}
	f.chooseSandbox(cmd, paths)
	r, err := f.rules(cmd, argv)
	if err == nil {
		err = f.answerer.look(cmd, f.wait)
	}
	if err != nil {
		return nil, err
	}
	flags := asked(cmd.Flags())
	if f.nats.context != "" {
		flags["nats"], flags["creds"] = []string{f.nats.url}, []string{f.nats.creds}
	}
	p := jobs.Plan{
		Version: version, Flags: flags, Args: paths, Argv: argv, Variants: jobs.Variants(f.agent, f.model), Backend: f.sandbox, Attempts: f.group, Parallel: f.parallel,
	}
	w, err := jobs.Begin(cmd.Context(), f.job.dir(list, strings.Join(f.agent, "_")), p, list, r.Rules)
	r.printMissing()
	if errors.Is(err, jobs.ErrNotEmpty) {
		return nil, usage("--out: %w; go on with a job by --resume", err)
	}
	if err != nil {
		return nil, err
	}
	if err := sealJob(cmd, w.Job); err != nil {
		w.Job.Close()
		return nil, err
	}
	return w, nil
}

// choose finds the tasks of a new job.
func (f *runFlags) choose(cmd *cobra.Command, paths []string) ([]jobs.Task, error) {
	if f.recorded != nil {
		sum := sha256.Sum256(f.recorded.Bundle)
		return []jobs.Task{{Dir: f.recorded.Dir, Name: f.recorded.Request.Task.Name, Task: f.recorded, Digest: hex.EncodeToString(sum[:])}}, nil
	}
	all, err := jobs.Find(paths)
	if err != nil {
		return nil, usageOf(err)
	}
	chosen := f.job.choice(cmd).Of(all)
	if len(chosen) == 0 {
		return nil, usage("--filter, --exclude: none of %s is left", plural(len(all), "task"))
	}
	return chosen, nil
}

// resume opens an existing job to continue it.
func (f *runFlags) resume(cmd *cobra.Command, _, _ []string) (_ *jobs.Work, err error) {
	j, err := jobs.Open(f.job.resume)
	if err != nil {
		return nil, usage("--resume: %w", err)
	}
	defer func() {
		if err != nil {
			j.Close()
		}
	}()
	kept := maps.Clone(j.Plan.Flags)
	if f.nats.context != "" {
		delete(kept, "nats")
		delete(kept, "creds")
	}
	theirs := maps.Clone(kept)
	maps.DeleteFunc(theirs, func(name string, _ []string) bool { return cmd.Flags().Changed(name) }) // the user has named it
	if err := f.job.trust.check(cmd, j.Dir, &j.Plan, theirs); err != nil {
		return nil, err
	}
	if err := again(cmd.Flags(), kept); err != nil {
		return nil, err
	}
	f.nats.takeName(cmd.Flags())
	if err := usageOf(f.limits.check(f), f.checkKeepFailed()); err != nil {
		return nil, err
	}
	unread := j.Unread()
	for _, name := range slices.Sorted(maps.Keys(unread)) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s has no result any more and runs again: %s; its files are moved to the folder %s\n", oneLine(name, 100), oneLine(unread[name].Error(), 300), jobs.RetriedName)
	}
	r, err := f.rules(cmd, j.Plan.Argv)
	if err == nil {
		err = f.answerer.look(cmd, f.wait)
	}
	if err != nil {
		return nil, err
	}
	below, err := f.job.rerunBound()
	if err != nil {
		return nil, err
	}
	w, err := jobs.Resume(cmd.Context(), j, r.Rules, f.job.reruns(cmd.ErrOrStderr(), below))
	r.printMissing()
	if err == nil {
		err = sealJob(cmd, j)
	}
	if err == nil && len(f.job.rerun) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s with a fault run again\n", plural(w.Rerun, "trial"))
	}
	return w, err
}

// work connects and runs the trials.
func (f *runFlags) work(cmd *cobra.Command, w *jobs.Work) error {
	stderr := cmd.ErrOrStderr()
	pg := progress.New(boardOf(cmd, isTerminal(os.Stderr) && !f.detach))
	cmd.SetErr(plain.NewWriter(pg)) // log lines appear above the bar
	defer cmd.SetErr(stderr)
	said := make(chan struct{})
	unsaid := context.AfterFunc(cmd.Context(), func() {
		defer close(said)
		fmt.Fprintln(pg, "the job stops: its rollouts without a result are cancelled")
	})
	defer func() {
		if !unsaid() {
			<-said
		}
	}()
	log := logger(cmd)
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	l, err := f.connect(ctx, w.Job, fail, log)
	if err != nil {
		return storeFailed(ctx, err)
	}
	defer l.close()
	t, err := trainer.Dial(ctx, trainer.Config{Broker: l.broker, Name: f.name, Shard: "job-" + w.Job.Plan.ID.String(), Orphans: trainer.LeaveOrphans, Tools: f.tools(), Log: log})
	if err != nil {
		return storeFailed(ctx, err)
	}
	defer t.Close()
	if f.detach {
		if err := f.keeper.detach(cmd, w.Job); err != nil {
			return err
		}
	}
	bus := &console.Bus{System: recorded.On(l.broker), URL: broker.ShownURL(f.nats.url), Creds: f.nats.creds, Trainer: f.name}
	if l.watch != nil && f.console.address() != consoleOff {
		ops, err := l.watch.dial(ctx, broker.RoleOps, broker.RoleOps, log)
		if err != nil {
			return storeFailed(ctx, err)
		}
		defer ops.Close()
		bus.Events = recorded.On(ops)
	}
	defer f.console.serve(ctx, cmd.ErrOrStderr(), console.Config{Source: &console.Job{Folder: &console.Folder{Dir: w.Job.Dir}, Bus: bus}, System: operate.On(l.broker, f.name), Log: log})()
	pg.Begin(len(w.Job.Plan.Trials), w.Names(), w.Job.Results())
	defer pg.End()
	retries, err := jobs.ParseRetries(f.job.retry)
	if err != nil {
		return err
	}
	below, err := f.job.rerunBound()
	if err != nil {
		return err
	}
	err = w.Run(ctx, t, jobs.Options{Progress: pg, Remote: f.nats.url != "", Limits: jobs.Limits{CostUSD: f.limits.maxCost, Tokens: f.limits.maxTokensTotal}, Retries: retries, RerunBelow: below})
	return storeFailed(ctx, err)
}

// boardOf returns the settings of a board at stderr.
func boardOf(cmd *cobra.Command, terminal bool) progress.Config {
	c := progress.Config{Out: plain.Raw(cmd.ErrOrStderr())} // the bar moves the cursor
	if terminal {
		c.Size = func() (columns, rows int) {
			columns, rows, err := term.GetSize(int(os.Stderr.Fd()))
			if err != nil {
				return 80, 24
			}
			return columns, rows
		}
	}
	return c
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
