package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rewards are the rewards of a task's trial; nil: it has none.
type rewards = map[string]float64

// jobFolder makes a job's folder with a trial of each task. The trials' own names
// say nothing.
func jobFolder(t *testing.T, tasks map[string]rewards) string {
	t.Helper()
	dir := t.TempDir()
	for folder, r := range tasks {
		trial := map[string]any{"task_name": "org/" + folder, "task_id": map[string]any{"path": "/somewhere/" + folder}, "verifier_result": nil}
		if r != nil {
			trial["verifier_result"] = map[string]any{"rewards": r}
		}
		data, err := json.Marshal(trial)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "trial-of-"+folder, "result.json"), string(data))
	}
	write(t, filepath.Join(dir, "result.json"), "{}") // of the job
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestRewardsAreCompared runs programs that leave the folders of a job in the
// place of Harbor and turngate. The tasks' names are not the names of their folders.
func TestRewardsAreCompared(t *testing.T) {
	one, zero := rewards{"reward": 1}, rewards{"reward": 0}
	for name, tt := range map[string]struct {
		theirs, ours map[string]rewards
		same         bool
		says         string
	}{
		"the same":       {map[string]rewards{"a": one, "b": zero}, map[string]rewards{"a": one, "b": zero}, true, "a 1 1"},
		"differ":         {map[string]rewards{"a": one, "b": zero}, map[string]rewards{"a": one, "b": one}, false, "differs"},
		"none in both":   {map[string]rewards{"a": one, "b": nil}, map[string]rewards{"a": one, "b": nil}, false, "none"},
		"none in one":    {map[string]rewards{"a": one, "b": zero}, map[string]rewards{"a": one, "b": nil}, false, "no reward"},
		"no trial":       {map[string]rewards{"a": one, "b": zero}, map[string]rewards{"a": one}, false, "no reward"},
		"several":        {map[string]rewards{"a": one, "b": {"x": 1, "y": 0.5}}, map[string]rewards{"a": one, "b": {"y": 0.5, "x": 1}}, true, "x=1 y=0.5"},
		"another number": {map[string]rewards{"a": one, "b": {"reward": 1, "y": 0.5}}, map[string]rewards{"a": one, "b": {"reward": 1, "y": 0}}, false, "differs"},
		"another key":    {map[string]rewards{"a": one, "b": {"reward": 1, "y": 0}}, map[string]rewards{"a": one, "b": {"reward": 1, "z": 0}}, false, "differs"},
	} {
		t.Run(name, func(t *testing.T) {
			tasks, programs := t.TempDir(), t.TempDir()
			for _, folder := range []string{"a", "b"} {
				write(t, filepath.Join(tasks, folder, "instruction.md"), "Do it.")
				write(t, filepath.Join(tasks, folder, "task.toml"), "[task]\nname = \"org/"+folder+"-of-a-set\"\n")
			}
			o := options{tasks: tasks, agent: "nop", n: 8, parallel: 1, harbor: filepath.Join(programs, "harbor"), turngate: filepath.Join(programs, "turngate")}
			const find = "#!/bin/sh\nset -e\nwhile [ \"$1\" != \"$flag\" ]; do shift; done\n"
			write(t, o.harbor, strings.Replace(find, "$flag", "-o", 1)+"mkdir -p \"$2\"\ncp -r '"+jobFolder(t, tt.theirs)+"' \"$2/job\"\n")
			write(t, o.turngate, strings.Replace(find, "$flag", "--out", 1)+"cp -r '"+jobFolder(t, tt.ours)+"' \"$2\"\nexit 1\n") // 1: a trial has a fault
			var out bytes.Buffer
			same, err := o.run(t.Context(), &out)
			if err != nil || same != tt.same || !strings.Contains(strings.Join(strings.Fields(out.String()), " "), tt.says) {
				t.Errorf("%v, %v:\n%s", same, err, &out)
			}
		})
	}
}

// TestAProgramThatFailsIsAnError, not a task without a reward.
func TestAProgramThatFailsIsAnError(t *testing.T) {
	tasks, programs := t.TempDir(), t.TempDir()
	write(t, filepath.Join(tasks, "a", "instruction.md"), "Do it.")
	o := options{tasks: tasks, agent: "nop", n: 8, parallel: 1, harbor: filepath.Join(programs, "harbor"), turngate: filepath.Join(programs, "turngate")}
	write(t, o.harbor, "#!/bin/sh\nexit 0\n")
	write(t, o.turngate, "#!/bin/sh\necho no such flag >&2\nexit 2\n")
	if _, err := o.run(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("got %v", err)
	}
}
