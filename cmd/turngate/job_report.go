package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

func jobReportCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Compare the agents and models of a job, over all tasks and for each",
		Args:  needArgs(1, 1, "the folder of one job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, results, err := jobs.Read(args[0])
			if err != nil {
				return err
			}
			report := compare.NewReport(&p, results)
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), report)
			}
			if err := printReportOf(cmd.OutOrStdout(), &report); err != nil {
				return err
			}
			printRetries(cmd.OutOrStdout(), report.Retries)
			return nil
		},
	}
	addOutput(cmd.Flags(), &output, "table", "json")
	return cmd
}

// printComparison prints the report of a job that has more than one agent or model.
func printComparison(w io.Writer, p *jobs.Plan, results []schema.Result) error {
	if len(p.Variants) < 2 {
		return nil
	}
	report := compare.NewReport(p, results)
	fmt.Fprintln(w)
	return printReportOf(w, &report)
}

// variantsOf describes the agents and models of a job.
func variantsOf(p *jobs.Plan) string {
	text := "agent " + strings.Join(p.Agents(), ", ")
	if models := p.Models(); len(models) > 0 {
		text += ", model " + strings.Join(models, ", ")
	}
	return text
}

func printReportOf(w io.Writer, r *compare.Report) error {
	t := newTable(w, "AGENT", "MODEL", "ENDED", "MEAN", "95 %", "PASS@K", "CALLS", "TOKENS", "COST", "SANDBOXES", "SECONDS", "ERRORS")
	t.spare, t.names = []string{"SECONDS", "SANDBOXES", "CALLS", "TOKENS"}, []string{"MODEL"}
	for i := range r.Variants {
		c := &r.Variants[i]
		t.row(oneLine(c.Agent, 20), oneLine(dash(c.Model), 60), fmt.Sprintf("%d of %d", c.Ended, c.Trials), progress.Reward(c.Mean), intervalText(c.Interval), passText(c.PassAt), c.Calls,
			fmt.Sprintf("%d + %d", c.PromptTokens, c.CompletionTokens), progress.Dollars(c.CostUSD), progress.Dollars(c.SandboxUSD), fmt.Sprintf("%.1f", c.Seconds), c.Faults())
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	header := []string{"TASK"}
	for _, c := range r.Variants {
		header = append(header, oneLine(c.Label(), 60))
	}
	t = newTable(w, header...)
	t.names = header
	for _, row := range r.Tasks[:min(len(r.Tasks), maxRows)] {
		cells := []any{oneLine(row.Task, 60)}
		for i := range row.Variants {
			c := &row.Variants[i]
			cells = append(cells, side(&compare.Side{Trials: c.Trials, Ended: c.Ended, Faults: c.Faults(), Reward: c.Mean}))
		}
		t.row(cells...)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if more := len(r.Tasks) - maxRows; more > 0 {
		fmt.Fprintf(w, "%d more tasks are not shown; `turngate job report -o json` has all\n", more)
	}
	return nil
}

// passText formats the values of pass@k, at most maxPassAt of them.
func passText(all map[int]float64) string {
	ks := slices.Sorted(maps.Keys(all))
	if len(ks) > maxPassAt { // the first ones and the last one
		ks = append(ks[:maxPassAt-1:maxPassAt-1], ks[len(ks)-1])
	}
	var list []string
	for _, k := range ks {
		p := all[k]
		list = append(list, fmt.Sprintf("pass@%d %s", k, progress.Reward(&p)))
	}
	return dash(strings.Join(list, ", "))
}

// intervalText formats a confidence interval.
func intervalText(i *[2]float64) string {
	if i == nil {
		return "-"
	}
	return progress.Reward(&i[0]) + " to " + progress.Reward(&i[1])
}
