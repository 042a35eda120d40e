package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// TestATableFitsTheTerminal: no line of the table of results is wider than the
// terminal, and each keeps the id, the reward and a part of the fault.
func TestATableFitsTheTerminal(t *testing.T) {
	one := 0.5
	results := []schema.Result{
		{ID: "local-ZYACXMWNBXNHJNCT-0", Task: "cache_poisoning_web_attack_medium", Attempt: 1, Status: schema.StatusDone, Reward: &one},
		{ID: "local-ZYACXMWNBXNHJNCT-1", Task: "cache_poisoning_web_attack_medium", Attempt: 1, Status: schema.StatusFailed, Fault: schema.Faultf("create", schema.CodeImage, schema.WhoTask, "%s", strings.Repeat("it cannot be built ", 20))},
	}
	plan := &jobs.Plan{Trials: []jobs.Trial{
		{Rollout: results[0].ID, Task: results[0].Task, Dir: "/tasks/a", Name: "cache_poisoning_web_attack_mediu__vYnkwAV"},
		{Rollout: results[1].ID, Task: results[1].Task, Dir: "/tasks/a", Name: "cache_poisoning_web_attack_mediu__xYnkwAV"},
	}}
	for _, width := range []int{0, 80, 100, 140} {
		var out bytes.Buffer
		table, _ := resultTable(&out, results, plan)
		table.width = width
		if err := table.flush(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); width > 0 && n > width {
				t.Errorf("%d columns, %d: %s", width, n, l)
			}
		}
		text := lines[0] + lines[1] + lines[2]
		for _, want := range []string{"TRIAL", "REWARD", "FAULT", "0.5", "local-ZYACXMWNBXNHJNCT-0", "local-ZYACXMWNBXNHJNCT-1", "cach", "vYnkwAV", "create:"} {
			if !strings.Contains(text, want) {
				t.Errorf("%d columns lack %q:\n%s", width, want, out.String())
			}
		}
		if strings.Contains(lines[0], "TASK") != (width == 0) {
			t.Errorf("%d columns: %s", width, lines[0])
		}
	}
}

// TestAStatusIsSaidOnce: the code of a fault that says the same as the status is left out.
func TestAStatusIsSaidOnce(t *testing.T) {
	cmd, out := &cobra.Command{}, &bytes.Buffer{}
	cmd.SetOut(out)
	of := func(id schema.ID, status schema.Status, code string) *recorded.Rollout {
		return &recorded.Rollout{ID: id, Result: &schema.Result{ID: id, Status: status, Fault: schema.Faultf("agent", code, schema.WhoUser, "x")}}
	}
	if err := printRollouts(cmd, formatTable, []*recorded.Rollout{of("local-1", schema.StatusCancelled, schema.CodeCancelled), of("local-2", schema.StatusFailed, schema.CodeExit)}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "cancelled") != 1 || !strings.Contains(got, "failed ("+schema.CodeExit+")") || strings.Contains(got, "JOB") {
		t.Errorf("got %s", got)
	}
}

// TestHelpNamesEachFlagsValue: text in back quotes replaces the name of a flag's
// value in the help.
func TestHelpNamesEachFlagsValue(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); strings.Contains(name, " ") {
				t.Errorf("%s --%s has the value %q", c.CommandPath(), f.Name, name)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand(nil, nil, nil))
}
