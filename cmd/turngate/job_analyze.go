package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/jobs/analyze"
	"github.com/turngate/turngate/jobs/recorded"
)

func jobAnalyzeCommand() *cobra.Command {
	var ids []string
	var output string
	cmd := &cobra.Command{
		Use:   "analyze DIR",
		Short: "Find rollouts of a job that a person should read: rewards without work, loops, agents that gave up, failed tools",
		Long: "Find by rules the rollouts of a job that a person should read. docs/jobs.md has the rules.\n\n" +
			"A finding names its rollout and its call, as `turngate rollout show` does, and cites the text. " +
			"The level error means that the reward may not come from the agent's work. The table counts the rollouts with each finding by task, agent and model.",
		Args: needArgs(1, 1, "the folder of one job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := chosenRollouts(args[0], ids)
			if err != nil {
				return err
			}
			report, err := analyze.Rollouts(cmd.Context(), list)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), report)
			}
			return printFindings(cmd.OutOrStdout(), report)
		},
	}
	cmd.Flags().StringArrayVar(&ids, "rollout", nil, "only the rollout with this id, or of the trial with this name (repeatable)")
	addOutput(cmd.Flags(), &output, "table", "json")
	return cmd
}

// chosenRollouts returns the rollouts of a job, or those with the names.
func chosenRollouts(dir string, names []string) ([]*recorded.Rollout, error) {
	all, err := recorded.InJob(dir)
	if err != nil || len(names) == 0 {
		return all, err
	}
	var out []*recorded.Rollout
	for _, name := range names {
		i := slices.IndexFunc(all, func(r *recorded.Rollout) bool { return string(r.ID) == name || r.Trial.Name == name })
		if i < 0 {
			return nil, usage("--rollout: %q is not valid: want the id of a rollout of %s, or the name of a trial", name, dir)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// citedText is the number of characters of a citation in a table.
const citedText = 200

func printFindings(w io.Writer, r *analyze.Report) error {
	if len(r.Findings) > 0 {
		t := newTable(w, "FINDING", "TASK", "AGENT", "ROLLOUTS", "REWARDED", "FINDINGS")
		t.names = []string{"TASK"}
		for _, c := range r.Counts {
			t.row(c.Code, oneLine(c.Task, 40), oneLine(c.Label(), 40), fmt.Sprintf("%d of %d", c.Rollouts, c.Of), c.Rewarded, c.Findings)
		}
		if err := t.flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	last := ""
	for _, f := range r.Findings {
		if name := string(f.Rollout) + " " + f.Trial; name != last {
			fmt.Fprintf(w, "%s, task %s, agent %s, reward %s\n", oneLine(strings.TrimSpace(name), 160), oneLine(f.Task, 60), oneLine(f.Label(), 40), rewardText(f.Reward))
			last = name
		}
		fmt.Fprintf(w, "  %s %s: %s\n", f.Level, f.Code, oneLine(f.Text, citedText))
		if f.Cited != "" {
			fmt.Fprintf(w, "    | %s\n", oneLine(f.Cited, citedText))
		}
	}
	fmt.Fprintf(w, "%s read, %s\n", plural(r.Rollouts, "rollout"), plural(len(r.Findings), "finding"))
	for _, u := range r.Unread {
		fmt.Fprintf(w, "%s was not read: %s\n", oneLine(string(u.Rollout)+" "+u.Trial, 160), oneLine(u.Reason, 200))
	}
	return nil
}
