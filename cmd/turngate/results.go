package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// maxRows is the largest number of results in a table. If a job has more
// results, the ones with a fault come first.
const maxRows = 50

// printResults writes the results as data. Nothing else is written to stdout.
func printResults(w io.Writer, format string, results []schema.Result, p *jobs.Plan) error {
	switch format {
	case "json":
		if results == nil {
			results = []schema.Result{}
		}
		return printJSON(w, results)
	case "jsonl":
		e := json.NewEncoder(plain.JSON(w))
		for _, r := range results {
			if err := e.Encode(r); err != nil {
				return err
			}
		}
		return nil
	default:
		return printTable(w, results, p)
	}
}

// printTable writes results as lines with the names of their tasks and trials in the plan.
// Trials are folders of the job.
func printTable(w io.Writer, results []schema.Result, p *jobs.Plan) error {
	rows := results
	if len(rows) > maxRows {
		rows = slices.Clone(results)
		slices.SortStableFunc(rows, func(a, b schema.Result) int {
			switch {
			case (a.Fault == nil) == (b.Fault == nil):
				return 0
			case a.Fault != nil:
				return -1
			default:
				return 1
			}
		})
		rows = rows[:maxRows]
	}
	t, faults := resultTable(w, rows, p)
	if err := t.flush(); err != nil {
		return err
	}
	if more := len(results) - len(rows); more > 0 {
		fmt.Fprintf(w, "%d more results are not shown; -o json has all\n", more)
	}
	for _, f := range faults {
		if t.shows(f.text) {
			continue
		}
		who := string(f.ids[0])
		if more := len(f.ids) - 1; more > 0 {
			who += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(w, "\n%s: %s\n", who, strings.ReplaceAll(f.text, "\n", "\n    ")) // no line of a fault looks like one of ours
	}
	return nil
}

// faultOf is a fault and the rollouts that it ended.
type faultOf struct {
	text string
	ids  []schema.ID
}

func resultTable(w io.Writer, rows []schema.Result, p *jobs.Plan) (*table, []*faultOf) {
	trials, titles := p.Names(), p.Titles()
	t := newTable(w, "TASK", "TRIAL", "ROLLOUT", "ATTEMPT", "STATUS", "REWARD", "CALLS", "TOKENS", "COST", "SECONDS", "FAULT")
	t.spare, t.cut = []string{"TASK", "ATTEMPT", "TOKENS", "SECONDS", "COST"}, []string{"FAULT"} // a trial has its task's name
	t.names = []string{"TRIAL"}
	var faults []*faultOf
	had := map[string]*faultOf{}
	for _, r := range rows {
		calls, tokens := 0, int64(0)
		for _, c := range r.Calls {
			calls += c.Count
			tokens += c.PromptTokens + c.CompletionTokens
		}
		var ms int64
		for _, p := range r.Phases {
			ms += p.MS
		}
		fault := "-"
		if r.Fault != nil {
			fault = oneLine(r.Fault.Error(), 80)
			whole := strings.TrimSpace(safeText(r.Fault.Error()))
			if had[whole] == nil {
				had[whole] = &faultOf{text: whole}
				faults = append(faults, had[whole])
			}
			had[whole].ids = append(had[whole].ids, r.ID)
		}
		t.row(shortName(oneLine(cmp.Or(titles[r.ID], r.Task), 200), 40), oneLine(dash(trials[r.ID]), 60), r.ID, r.Attempt, r.Status, rewardText(r.Reward), calls, tokens, progress.Dollars(r.CostUSD()), fmt.Sprintf("%.1f", float64(ms)/1000), fault)
	}
	return t, faults
}

// maxPassAt is the largest number of values of pass@k in a summary.
const maxPassAt = 6

// printSummary prints the summary of a job, with the causes of failed rollouts.
func printSummary(w io.Writer, s jobs.Summary) {
	line := fmt.Sprintf("%d of %d ended, ", s.Ended, s.Trials)
	switch {
	case s.Rewarded == 0:
		line += "none with a reward"
	case s.Rewarded < s.Ended:
		line += fmt.Sprintf("mean reward %s of the %d with a reward", progress.Reward(s.Mean), s.Rewarded)
	default:
		line += "mean reward " + progress.Reward(s.Mean)
	}
	if len(s.PassAt) > 0 {
		line += ", " + passText(s.PassAt)
	}
	fmt.Fprintf(w, "%s, %d calls, %d + %d tokens%s, %.1f s of rollouts, %.1f s of sandboxes%s\n", line, s.Calls, s.PromptTokens, s.CompletionTokens, costText(", ", s.CostUSD, s.Unpriced), s.Seconds, s.SandboxSeconds, costText(" for ", s.SandboxUSD, s.SandboxUnpriced))
	printCauses(w, "ERRORS", s.Errors)
}

// printRetries prints the faults for which trials of a job ran again.
func printRetries(w io.Writer, list []jobs.Cause) { printCauses(w, "RETRIED", list) }

func printCauses(w io.Writer, head string, list []jobs.Cause) {
	if len(list) == 0 {
		return
	}
	heads := []string{head, "STAGE", "CODE", "FAULT OF"}
	rewards := slices.ContainsFunc(list, func(c jobs.Cause) bool { return c.BestReward != nil })
	if rewards {
		heads = append(heads, "BEST REWARD")
	}
	t := newTable(w, append(heads, "FOR EXAMPLE")...)
	t.cut = []string{"FOR EXAMPLE"}
	for _, c := range list {
		cells := []any{c.Count, oneLine(c.Stage, 20), oneLine(c.Code, 24), oneLine(c.Who, 10)}
		if rewards {
			cells = append(cells, progress.Reward(c.BestReward))
		}
		t.row(append(cells, oneLine(c.Example, 80))...)
	}
	_ = t.flush() // as for all output other than results
}

// costText describes a cost of a job for its summary, after a separator. It is empty if no
// cost is known.
func costText(separator string, usd *float64, unpriced int) string {
	switch {
	case usd == nil:
		return ""
	case unpriced > 0:
		return fmt.Sprintf("%s%s without %s of unknown cost", separator, progress.Dollars(usd), plural(unpriced, "rollout"))
	default:
		return separator + progress.Dollars(usd)
	}
}

// printJSON writes a value as indented JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(plain.JSON(w))
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// oneLine makes untrusted text safe for a table cell: without line breaks and
// control characters, and with at most limit characters.
func oneLine(s string, limit int) string { return plain.Line(s, limit) }
