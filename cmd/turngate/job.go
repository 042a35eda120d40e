package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
)

func jobCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job",
		Short: "Jobs that `turngate run` has kept: list, show, attach, compare, analyze, regrade, share, remove",
	}
	cmd.AddCommand(jobListCommand(), jobShowCommand(), jobReportCommand(), jobDiffCommand(), jobAnalyzeCommand(), jobRegradeCommand(), jobShareCommand(), jobAttachCommand(), jobRemoveCommand(),
		jobControlCommand(jobs.ActionPause, "Let no trial of a running job begin; the ones that run end"),
		jobControlCommand(jobs.ActionResume, "End the pause of a job"),
		jobControlCommand(jobs.ActionCancel, "Cancel the rollouts of a running job, which `turngate run --resume` continues"))
	return cmd
}

// needArgs requires between low and high arguments. Another number is a usage
// error.
func needArgs(low, high int, want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < low || len(args) > high {
			return usage("%d arguments are not valid: want %s", len(args), want)
		}
		return nil
	}
}

func jobListCommand() *cobra.Command {
	var runs, output string
	cmd := &cobra.Command{
		Use:   "ls [DIR]",
		Short: "List jobs, the newest first",
		Args:  needArgs(0, 1, "one folder of jobs or none"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				runs = args[0]
			}
			found, bad := jobs.List(runs)
			list, silent := withStates(cmd.Context(), found)
			bad = errors.Join(bad, silent)
			if !isTable(output) {
				if err := printList(cmd.OutOrStdout(), output, list); err != nil {
					return err
				}
				return bad
			}
			t := newList(cmd.OutOrStdout(), output, "JOB", "STATE", "AGENT", "MODEL", "TRIALS", "ENDED", "MEAN", "ERRORS", "BEGUN", "TOOK")
			t.spare = []string{"TOOK", "BEGUN", "MODEL", "AGENT"}
			for _, e := range list {
				took := "-"
				if e.Finished != nil {
					took = e.Finished.Sub(e.Created).Round(time.Second).String()
				}
				t.row(oneLine(e.Dir, len(e.Dir)+1), dash(string(e.State)), oneLine(dash(strings.Join(e.Agents, ", ")), 20), oneLine(dash(strings.Join(e.Models, ", ")), 30), e.Trials, e.Ended, progress.Reward(e.Mean), e.Faults(), e.Created.Local().Format("2006-01-02 15:04"), took)
			}
			if err := t.flush(); err != nil {
				return err
			}
			return bad
		},
	}
	cmd.Flags().StringVar(&runs, "runs", "runs", "folder of jobs")
	addListOutput(cmd.Flags(), &output)
	return cmd
}

// listed is a job in the list of jobs.
type listed struct {
	jobs.Entry
	State jobs.State `json:"state"` // empty: its process does not tell
}

// askAtOnce is the number of jobs that are asked for their states side by side.
const askAtOnce = 32

// withStates returns jobs with their states. The error names the jobs whose processes give
// no answer.
func withStates(ctx context.Context, found []jobs.Entry) ([]listed, error) {
	list, silent := make([]listed, len(found)), make([]error, len(found))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i, e := range found {
		asking.Go(func() error {
			list[i].Entry = e
			list[i].State, silent[i] = jobs.StateOf(ctx, e.Dir)
			return nil
		})
	}
	_ = asking.Wait()
	return list, errors.Join(silent...)
}

func jobShowCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "show DIR",
		Short: "Show a job's results and why rollouts failed",
		Args:  needArgs(1, 1, "the folder of one job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, results, err := jobs.Read(args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output != "table" {
				return printResults(out, output, results, &p)
			}
			state, silent := jobs.StateOf(cmd.Context(), args[0])
			if silent != nil {
				state = "its state is not known"
			}
			fmt.Fprintf(out, "job %s: %s, %s, begun %s\n\n", oneLine(p.Name, 100), state, oneLine(variantsOf(&p), 200), p.Created.Local().Format(time.DateTime))
			if err := printTable(out, results, &p); err != nil {
				return err
			}
			fmt.Fprintln(out)
			printSummary(out, jobs.Sum(len(p.Trials), results))
			printRetries(out, p.Causes())
			if p.Stopped != "" {
				fmt.Fprintf(out, "the job stopped before all trials had a result: %s\n", oneLine(p.Stopped, 400))
			}
			return errors.Join(printComparison(out, &p, results), silent)
		},
	}
	addOutput(cmd.Flags(), &output, "table", "json", "jsonl")
	return cmd
}

func jobRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm DIR...",
		Short: "Remove the folders of jobs with all their files; a job that runs is refused",
		Args:  needArgs(1, 1000, "the folders of jobs"),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			var bad error
			for _, dir := range dirs {
				if err := jobs.Remove(dir); err != nil {
					bad = errors.Join(bad, err)
					continue
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "removed %s\n", oneLine(dir, len(dir)+1))
			}
			return bad
		},
	}
}

func jobDiffCommand() *cobra.Command {
	var output string
	var all bool
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two jobs task by task",
		Args:  needArgs(2, 2, "the folders of two jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			changes, err := compare.Diff(args[0], args[1])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output == "json" {
				if changes == nil {
					changes = []compare.Change{}
				}
				return printJSON(out, changes)
			}
			count := map[string]int{}
			t := newTable(out, "TASK", "A", "B", "CHANGE")
			t.names = []string{"TASK"}
			for _, c := range changes {
				count[c.Kind()]++
				if c.Kind() != compare.Same || all {
					t.row(oneLine(c.Task, 60), side(c.A), side(c.B), c.Kind())
				}
			}
			if err := t.flush(); err != nil {
				return err
			}
			for _, kind := range []string{compare.Better, compare.Worse, compare.Same, compare.Unknown, compare.OnlyA, compare.OnlyB} {
				if count[kind] > 0 {
					fmt.Fprintf(out, "%d %s\n", count[kind], kind)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "show tasks that are the same, too")
	addOutput(cmd.Flags(), &output, "table", "json")
	return cmd
}

// side formats the result of a task in one job.
func side(s *compare.Side) string {
	if s == nil {
		return "-"
	}
	text := progress.Reward(s.Reward)
	if s.Faults > 0 {
		text += " (" + plural(s.Faults, "error") + ")"
	}
	if s.Ended < s.Trials {
		text += fmt.Sprintf(" (%d of %d ended)", s.Ended, s.Trials)
	}
	return text
}
