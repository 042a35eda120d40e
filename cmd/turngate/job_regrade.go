package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/internal/regrade"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// regradeFlags select the rollouts to verify again, and the tests.
type regradeFlags struct {
	rollout            []string
	tests, out, output string
	parallel           int
	trust              trustFlags
}

// regraded is a rollout that was verified again.
type regraded struct {
	Trial   string    `json:"trial"`
	Task    string    `json:"task"`
	Rollout schema.ID `json:"rollout"`
	Old     *float64  `json:"old"` // null: not known
	New     *float64  `json:"new"` // null: not known, or there is a fault
	// Again is the rollout of the new job, and Fault its fault, with which its
	// reward does not count.
	Again schema.ID     `json:"again"`
	Fault *schema.Fault `json:"fault,omitempty"`
}

// leftOut is a rollout that cannot be verified again.
type leftOut struct {
	Trial  string `json:"trial"`
	Reason string `json:"reason"`
}

// regradeReport has both, and the folder of the new job.
type regradeReport struct {
	Job      string     `json:"job"`
	Regraded []regraded `json:"regraded"`
	LeftOut  []leftOut  `json:"left_out"`
}

func jobRegradeCommand() *cobra.Command {
	f := &regradeFlags{}
	cmd := &cobra.Command{
		Use:   "regrade DIR [-- FLAGS OF RUN...]",
		Short: "Run the verifier of a job's rollouts again on their files, without the agent, and show the old and new rewards",
		Long: "Run the verifier again on the files that the agents of a job have left, and show the old and the new rewards side by side. No agent and no model runs.\n\n" +
			"It needs rollouts with a separate verifier, since the job's folder has the files that such a verifier got, or of `turngate run --keep-workdir`. Rollouts that cannot be verified again are named first, each with its reason.\n\n" +
			"The tests are those that the task has now, or those of --tests. The new results are a job of their own, which the agent oracle runs with the settings of the old one; the old folder stays as it is. " +
			"Flags of `turngate run` follow --.\n\n" +
			"Exit status: 0 if every verifier that ran again ended without a fault, 1 if one had a fault, 2 if none can run.",
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, more := atDash(cmd, args)
			if len(dirs) != 1 {
				return usage("%d arguments are not valid: want the folder of one job", len(dirs))
			}
			return f.run(cmd, dirs[0], more)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.rollout, "rollout", nil, "only the rollout with this id, or of the trial with this name (repeatable)")
	fl.StringVar(&f.tests, "tests", "", "folder of tests for all rollouts, instead of the folder tests of their tasks")
	fl.StringVar(&f.out, "out", "", "folder of the new job, which must not exist (default: DIR-regraded, or the next free DIR-regraded-N)")
	fl.VarP(newCount(&f.parallel, 2), "parallel", "j", "verifiers at once")
	f.trust.add(fl, "")
	addOutput(fl, &f.output, "table", "json")
	return cmd
}

func (f *regradeFlags) run(cmd *cobra.Command, dir string, more []string) error {
	dir = filepath.Clean(dir)
	list, err := chosenRollouts(dir, f.rollout)
	if err != nil {
		return err
	}
	if f.tests != "" {
		if _, err := tasks.ReadFile(f.tests, "test.sh"); err != nil {
			return usage("--tests: %q is not valid: want a folder with test.sh: %v", f.tests, err)
		}
	}
	temp, err := os.MkdirTemp("", "turngate-regrade-")
	if err != nil {
		return fmt.Errorf("regrade: %w", err)
	}
	defer os.RemoveAll(temp)
	out, err := f.folder(dir)
	if err != nil {
		return err
	}
	again := &runFlags{}
	c := runCommandOf(again)
	c.SetContext(cmd.Context())
	c.SetOut(cmd.ErrOrStderr()) // the report alone is data
	c.SetErr(cmd.ErrOrStderr())
	c.Flags().Bool("verbose", false, "")
	flags := []string{}
	if len(list) > 0 {
		kept := flagsOfJob(list[0].Plan, "agent-timeout", "snapshot", "upstream")
		if err := f.trust.check(cmd, dir, list[0].Plan, kept); err != nil {
			return err
		}
		flags = asArgs(kept)
	}
	flags = append(append(flags, "--agent=oracle", "--out="+out, "--group=1", "--parallel="+strconv.Itoa(f.parallel)), more...)
	if err := c.ParseFlags(flags); err != nil {
		return usageOf(err)
	}
	if err := again.check(c, nil); err != nil {
		return err
	}
	rules, err := again.rules(c, nil)
	if err != nil {
		return err
	}
	report := regradeReport{Job: out, Regraded: []regraded{}, LeftOut: []leftOut{}}
	var chosen []jobs.Task
	olds := map[string]*regrade.Rollout{} // by the folders of the new job's tasks
	for i, r := range list {
		old, err := regrade.Of(r)
		var t jobs.Task
		if err == nil {
			t, err = f.task(rules.Rules, old, filepath.Join(temp, strconv.Itoa(i)))
		}
		if err != nil {
			report.LeftOut = append(report.LeftOut, leftOut{r.Name(), err.Error()})
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is left out: %s\n", oneLine(r.Name(), 100), oneLine(err.Error(), 400))
			continue
		}
		chosen, olds[t.Dir] = append(chosen, t), old
	}
	if len(chosen) == 0 {
		return usage("none of %s of %s can be verified again", plural(len(list), "rollout"), dir)
	}
	base := rules.Request
	rules.Request = func(t *tasks.Task, v jobs.Variant) (schema.Request, error) {
		q, err := base(t, v)
		q.Agent.User = "root" // it puts files where any user of the agent could
		if q.Verify != nil {
			verify := *q.Verify
			verify.Collect, q.Verify = nil, &verify // they ran with the agent's processes
		}
		return q, err
	}
	w, err := jobs.Begin(cmd.Context(), out, jobs.Plan{
		Version: version, Flags: asked(c.Flags()), Args: []string{dir}, Variants: jobs.Variants(again.agent, nil), Backend: again.sandbox, Attempts: 1, Parallel: again.parallel,
	}, chosen, rules.Rules)
	rules.printMissing()
	if refused := (*jobs.RefusedError)(nil); errors.As(err, &refused) {
		return usage("%w", refused)
	}
	if errors.Is(err, jobs.ErrNotEmpty) {
		return usage("--out: %w", err)
	}
	if err != nil {
		return err
	}
	defer w.Job.Close()
	if err := sealJob(cmd, w.Job); err != nil {
		return err
	}
	if err := again.work(cmd, w); err != nil {
		return err
	}
	for _, t := range w.Job.Results() {
		trial, _ := w.Job.Trial(t.ID)
		old := olds[trial.Dir]
		one := regraded{Trial: old.Name(), Task: old.Trial.Task, Rollout: old.ID, Old: old.Result.Reward, Again: t.ID, Fault: t.Fault}
		if err := old.Check(&t, filepath.Join(w.Job.Dir, trial.Name)); err != nil && t.Fault == nil {
			one.Fault = schema.Faultf("agent", schema.CodeInternal, schema.WhoWorker, "%v", err)
		}
		if one.Fault == nil {
			one.New = t.Reward
		}
		report.Regraded = append(report.Regraded, one)
	}
	return f.print(cmd.OutOrStdout(), report)
}

// folder returns the folder of the new job.
func (f *regradeFlags) folder(dir string) (string, error) {
	if f.out != "" {
		return f.out, nil
	}
	for n := 1; n <= 1000; n++ {
		at := dir + "-regraded"
		if n > 1 {
			at += "-" + strconv.Itoa(n)
		}
		if _, err := os.Lstat(at); errors.Is(err, os.ErrNotExist) {
			return at, nil
		}
	}
	return "", usage("--out: no folder %s-regraded-N is free: name one", dir)
}

// task makes the task of a rollout in an empty folder, and loads it. An error is the
// reason for which the rollout's verifier cannot run again.
func (f *regradeFlags) task(rules jobs.Rules, r *regrade.Rollout, at string) (jobs.Task, error) {
	if err := r.Task(at, f.tests); err != nil {
		return jobs.Task{}, err
	}
	t, err := rules.Load(at)
	if err != nil {
		return jobs.Task{}, err
	}
	verify := t.Request.Verify
	switch {
	case verify == nil || r.Apart && verify.Separate == nil:
		return jobs.Task{}, errors.New("its task has no separate verifier any more")
	case !r.Apart && verify.Separate != nil:
		return jobs.Task{}, errors.New("its task has a separate verifier now, which it had not then")
	case !r.Apart && len(t.Request.Sandbox.Services) > 0:
		return jobs.Task{}, errors.New("its task has services beside the agent's sandbox, whose files are not kept")
	case f.tests != "" && verify.Bundled:
		return jobs.Task{}, errors.New("the image of its verifier has the tests, so --tests has no effect")
	}
	digest, err := jobs.Digest(at, t.Bundle)
	if err != nil {
		return jobs.Task{}, err
	}
	dir, err := filepath.Abs(filepath.Join(r.Job, r.Trial.Name))
	if err != nil {
		return jobs.Task{}, fmt.Errorf("regrade: %w", err)
	}
	return jobs.Task{Dir: dir, Name: r.Trial.Task, Source: r.Trial.Source, Digest: digest, Task: t}, nil
}

func (f *regradeFlags) print(w io.Writer, r regradeReport) error {
	faults := 0
	for _, one := range r.Regraded {
		if one.Fault != nil {
			faults++
		}
	}
	if f.output == "json" {
		if err := printJSON(w, r); err != nil {
			return err
		}
	} else if err := printRegraded(w, r); err != nil {
		return err
	}
	if faults > 0 {
		return &exitError{code: exitFault}
	}
	return nil
}

func printRegraded(w io.Writer, r regradeReport) error {
	t := newTable(w, "TRIAL", "TASK", "OLD", "NEW", "CHANGE", "FAULT")
	t.names, t.cut = []string{"TRIAL", "TASK"}, []string{"FAULT"}
	count := map[string]int{}
	for _, one := range r.Regraded {
		c := compare.Change{A: &compare.Side{Reward: one.Old}, B: &compare.Side{Reward: one.New}}
		count[c.Kind()]++
		fault := "-"
		if one.Fault != nil {
			fault = oneLine(one.Fault.Error(), 80)
		}
		t.row(oneLine(one.Trial, 60), oneLine(one.Task, 40), progress.Reward(one.Old), progress.Reward(one.New), c.Kind(), fault)
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, kind := range []string{compare.Better, compare.Worse, compare.Same, compare.Unknown} {
		if count[kind] > 0 {
			fmt.Fprintf(w, "%d %s\n", count[kind], kind)
		}
	}
	if n := len(r.LeftOut); n > 0 {
		fmt.Fprintf(w, "%d left out\n", n)
	}
	fmt.Fprintf(w, "job %s\n", shown(r.Job))
	return nil
}
