package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestOneBrokenTrialHidesNoOther from any command that reads jobs: it is a fault of its own.
func TestOneBrokenTrialHidesNoOther(t *testing.T) {
	t.Parallel()
	binary, runs := testenv.Binary(t), t.TempDir()
	j := keptJob(t, filepath.Join(runs, "first"))
	bad := j.Plan.Trials[1]
	j.Close()
	harness.Must(t, os.Truncate(filepath.Join(j.Dir, bad.Name, "turngate.json"), 0))
	harness.Must(t, os.Truncate(filepath.Join(j.Dir, "result.json"), 0))
	const named = "turngate.json: it is not JSON"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"job", "show", j.Dir}, named},
		{[]string{"job", "report", j.Dir}, "3 of 4"},
		{[]string{"job", "ls", runs}, j.Dir},
		{[]string{"job", "diff", "--all", j.Dir, j.Dir}, "1 (2 errors)"},
		{[]string{"job", "analyze", j.Dir}, "was not read: read: unreadable: " + named},
		{[]string{"job", "share", j.Dir, "--out", filepath.Join(runs, "shared.html")}, "4 rollouts"},
		{[]string{"rollout", "ls", "--runs", runs}, bad.Name},
		{[]string{"group", "ls", "--runs", runs}, "1 open, 1 done, 2 failed"},
		{[]string{"rollout", "get", j.Dir, "--runs", runs}, named},
		{[]string{"rollout", "show", j.Dir}, named},
	} {
		got := turngate(t, binary, tt.args...)
		if !strings.Contains(got.out, tt.want) || !strings.Contains(got.out, string(schema.StatusDone)) && tt.args[1] == "show" || strings.Contains(got.errOut, "unexpected end") {
			t.Errorf("%q: no %q in %+v", tt.args, tt.want, got)
		}
	}
	var list []schema.Result
	harness.Must(t, json.Unmarshal([]byte(turngate(t, binary, "rollout", "ls", "--runs", runs, "-o", "json").out), &list))
	if len(list) != 3 || *list[0].Reward != 1 || list[1].Fault == nil || list[1].Fault.Code != schema.CodeUnreadable || strings.Contains(list[1].Fault.Message, runs) {
		t.Errorf("got %+v", list)
	}
}
