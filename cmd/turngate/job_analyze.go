package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/analyze"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

func jobAnalyzeCommand() *cobra.Command {
	var ids []string
	var output string
	var judge judgeFlags
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
			model, err := judge.open(cmd.Context())
			if err != nil {
				return err
			}
			report, err := analyze.Rollouts(cmd.Context(), list)
			if err == nil && model != nil {
				report.Readings, err = model.Rollouts(cmd.Context(), list)
			}
			if err != nil {
				return err
			}
			if output == "json" {
				err = printJSON(cmd.OutOrStdout(), report)
			} else {
				err = printFindings(cmd.OutOrStdout(), report)
			}
			if err == nil && slices.ContainsFunc(report.Readings, func(r analyze.Reading) bool { return r.Error != "" }) {
				err = &exitError{code: exitFault}
			}
			return err
		},
	}
	cmd.Flags().StringArrayVar(&ids, "rollout", nil, "only the rollout with this id, or of the trial with this name (repeatable)")
	judge.add(cmd)
	addOutput(cmd.Flags(), &output, "table", "json")
	return cmd
}

// judgeFlags select a model that reads the rollouts, too.
type judgeFlags struct{ judge, judgeModel, upstreams, rubric string }

func (f *judgeFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.judge, "judge", "", "a model reads each rollout, too: upstream:URL, or upstream:NAME of --upstreams")
	fl.StringVar(&f.judgeModel, "judge-model", "", "model to ask the judge's URL for (default: its only one)")
	fl.StringVar(&f.upstreams, "upstreams", "", "file of upstreams, as of a worker")
	fl.StringVar(&f.rubric, "rubric", "", "file with the rubric of the judge")
}

// maxRubric is the size of the largest rubric in bytes.
const maxRubric = 64 << 10

// open returns the judge; nil if none is asked for.
func (f *judgeFlags) open(ctx context.Context) (*analyze.Judge, error) {
	if f.judge == "" {
		if f.rubric != "" || f.judgeModel != "" || f.upstreams != "" {
			return nil, usage("--rubric, --judge-model, --upstreams: they need --judge")
		}
		return nil, nil
	}
	where, ok := strings.CutPrefix(f.judge, "upstream:")
	if !ok || where == "" {
		return nil, usage("--judge: %q is not valid: want upstream:URL, or upstream:NAME with --upstreams", f.judge)
	}
	rubric, err := os.ReadFile(f.rubric)
	if err != nil || len(rubric) > maxRubric || strings.TrimSpace(string(rubric)) == "" {
		return nil, usage("--rubric: %q is not valid: want a file with text of at most %d bytes", f.rubric, maxRubric)
	}
	ask := func(look func(context.Context) error, answer func(context.Context, *schema.Call, func(*schema.Delta) error) (*schema.Reply, error)) (*analyze.Judge, error) {
		if err := look(ctx); err != nil {
			return nil, usage("--judge: %w", err)
		}
		return &analyze.Judge{Rubric: string(rubric), Ask: func(ctx context.Context, c *schema.Call) (*schema.Reply, error) { return answer(ctx, c, nil) }}, nil
	}
	if strings.Contains(where, "://") {
		key, err := upstream.KeyFromEnvironment()
		if err != nil {
			return nil, usage("--judge: %w", err)
		}
		u, err := upstream.New(upstream.Config{URL: where, Key: key, Model: f.judgeModel, Plain: true})
		if err != nil {
			return nil, usage("--judge: %w", err)
		}
		return ask(u.Look, u.Answer)
	}
	list, err := loadUpstreams(f.upstreams)
	if err != nil {
		return nil, err
	}
	for _, u := range list {
		if u.Name == where && f.judgeModel == "" {
			return ask(u.Look, u.Answer)
		}
	}
	return nil, usage("--judge: %q is not valid: want an upstream of --upstreams, which has its model", where)
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
	var usage schema.Usage
	cost, unpriced := 0.0, 0
	for _, j := range r.Readings {
		fmt.Fprintf(w, "%s, task %s, judged: %s\n", oneLine(string(j.Rollout)+" "+j.Trial, 160), oneLine(j.Task, 60), oneLine(cmp.Or(j.Verdict, "no verdict: "+j.Error), 1000))
		for _, c := range j.Cites {
			fmt.Fprintf(w, "  call %d: %s\n    | %s\n", c.Call, oneLine(c.Why, citedText), oneLine(c.Text, citedText))
		}
		if j.Invalid > 0 {
			fmt.Fprintf(w, "  %s of lines that are not in the record\n", plural(j.Invalid, "more cite"))
		}
		usage.PromptTokens += j.Usage.PromptTokens
		usage.CompletionTokens += j.Usage.CompletionTokens
		if j.Usage.CostUSD != nil {
			cost += *j.Usage.CostUSD
		} else {
			unpriced++
		}
	}
	if n := len(r.Readings); n > 0 {
		line := fmt.Sprintf("the judge read %s with %d + %d tokens", plural(n, "rollout"), usage.PromptTokens, usage.CompletionTokens)
		if unpriced == 0 {
			line += ", " + progress.Dollars(&cost)
		}
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "%s read, %s\n", plural(r.Rollouts, "rollout"), plural(len(r.Findings), "finding"))
	for _, u := range r.Unread {
		fmt.Fprintf(w, "%s was not read: %s\n", oneLine(string(u.Rollout)+" "+u.Trial, 160), oneLine(u.Reason, 200))
	}
	return nil
}
