package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// TestAFolderOfSeveralJobs: two folders with a task of one name are told apart in the tables, of
// which each has the job and filters; jobs are removed.
func TestAFolderOfSeveralJobs(t *testing.T) {
	testenv.Slow(t)
	binary, runs := testenv.Binary(t), t.TempDir()
	files := map[string]string{}
	for _, dir := range []string{"hello", "copied"} {
		files[dir+"/instruction.md"] = "x"
		files[dir+"/task.toml"] = "[task]\nname = \"org/hello\"\n"
		files[dir+"/replay.yaml"] = done
	}
	files["hello/tests/test.sh"] = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
	files["copied/tests/test.sh"] = "#!/bin/sh\necho 0.25 > /logs/verifier/reward.txt\n"
	dir := task(t, files)
	both, one := filepath.Join(runs, "both"), filepath.Join(runs, "one")
	got := turngate(t, binary, "run", "--agent", "nop", "--sandbox", "local", "--out", both, dir)
	if got.code != 0 || !strings.Contains(got.errOut, `warning: 2 folders have a task named "org/hello"`) || !strings.Contains(got.out, "org/hello (copied)") || !strings.Contains(got.out, "org/hello (hello)") {
		t.Fatalf("%+v", got)
	}
	if got := turngate(t, binary, "run", "--agent", "nop", "--sandbox", "local", "--label", "arm=b", "--out", one, filepath.Join(dir, "hello")); got.code != 0 || strings.Contains(got.errOut, "warning:") {
		t.Fatalf("%+v", got)
	}
	for name, tt := range map[string]struct {
		args []string
		want []string // in the lines of the table, in any order
	}{
		"all rollouts": {[]string{"rollout", "ls"}, []string{both + "  copied__", both + "  hello__", one}},
		"of a job":     {[]string{"rollout", "ls", "--job", "one"}, []string{one}},
		"of a reward":  {[]string{"rollout", "ls", "--reward", "<0.5"}, []string{"org/hello (copied)"}},
		"of a task":    {[]string{"rollout", "ls", "--task", "cop*"}, []string{"org/hello (copied)"}},
		"of a label":   {[]string{"rollout", "ls", "--label", "arm=b"}, []string{one}},
		"of a status":  {[]string{"rollout", "ls", "--status", "failed,open"}, nil},
		"groups":       {[]string{"group", "ls"}, []string{"org/hello (copied)", "org/hello (hello)", "  org/hello "}},
		"of a job too": {[]string{"group", "ls", "--job", "one"}, []string{one}},
		"a report":     {[]string{"job", "report", both}, []string{"org/hello (copied)", "org/hello (hello)"}},
		"one job":      {[]string{"job", "show", both}, []string{"org/hello (copied)", "org/hello (hello)"}},
	} {
		args := tt.args
		if args[0] != "job" {
			args = append(slices.Clone(args), "--runs", runs)
		}
		got := turngate(t, binary, args...)
		rows := 0
		for line := range strings.Lines(got.out) {
			if strings.Contains(line, "hello") && !strings.HasPrefix(line, "job ") {
				rows++
			}
		}
		if got.code != 0 || rows != len(tt.want) {
			t.Errorf("%s: %d rows: %+v", name, rows, got)
		}
		for _, want := range tt.want {
			if !strings.Contains(got.out, want) {
				t.Errorf("%s: no %q in %s", name, want, got.out)
			}
		}
		if args[0] != "job" && rows > 0 && !strings.Contains(got.out, "JOB") {
			t.Errorf("%s: no column of the job: %s", name, got.out)
		}
	}
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"a status":        {[]string{"rollout", "ls", "--status", "finished"}, `--status: "finished" is not valid: want open, queued,`},
		"a reward":        {[]string{"rollout", "ls", "--reward", "good"}, `--reward: "good" is not valid: want a condition such as ">=0.5", 1,`},
		"a pattern":       {[]string{"rollout", "ls", "--task", "["}, `--task: "[" is not valid: want a pattern`},
		"a job elsewhere": {[]string{"group", "ls", "--nats", "nats://127.0.0.1:1", "--job", "one"}, "--job: the rollouts of --nats belong to no job's folder"},
	} {
		if got := turngate(t, binary, tt.args...); got.code != 2 || !strings.Contains(got.errOut, tt.says) || strings.Count(got.errOut, "\n") != 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := turngate(t, binary, "job", "rm", one, runs); got.code != 1 || !strings.Contains(got.errOut, "removed "+one) || !strings.Contains(got.errOut, "this is not the folder of a job") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(one); err == nil {
		t.Error("the job is there")
	}
	if _, err := os.Stat(both); err != nil {
		t.Error(err)
	}
}
