package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/turngate/turngate/schema"
)

// printResults writes results as data: nothing else goes to stdout.
func printResults(w io.Writer, format string, results []schema.Result) error {
	switch format {
	case "json":
		if results == nil {
			results = []schema.Result{}
		}
		return printJSON(w, results)
	case "jsonl":
		e := json.NewEncoder(w)
		for _, r := range results {
			if err := e.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TASK\tROLLOUT\tATTEMPT\tSTATUS\tREWARD\tCALLS\tTOKENS\tSECONDS\tFAULT")
	for _, r := range results {
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
			fault = oneLine(r.Fault.Error(), 120)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%d\t%d\t%.1f\t%s\n", oneLine(r.Task, 40), r.ID, r.Attempt, r.Status, rewardText(r.Reward), calls, tokens, float64(ms)/1000, fault)
	}
	return t.Flush()
}

// printJSON writes a value for other programs, readable for people too.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// oneLine makes foreign text fit into a cell: no line breaks, no control
// characters, no more than limit bytes.
func oneLine(s string, limit int) string {
	out := []rune{}
	for _, r := range schema.Clip(s, limit) {
		if r < ' ' || r == 0x7f {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}
