package main_test

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestExitStatuses runs a command for each status. One that waits for a person or for an
// agent is ended by --timeout or by a signal.
func TestExitStatuses(t *testing.T) {
	binary, dir := testenv.Binary(t), t.TempDir()
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	long := []string{"run", "--agent", "command", "--runs", dir, good, "--", "sleep", "600"}
	for name, tt := range map[string]struct {
		code int
		says string
		args []string
	}{
		"done":              {0, " (", []string{"version"}},
		"done by a flag":    {0, " (", []string{"--version"}},
		"help":              {0, "Usage:", []string{"job"}},
		"a fault":           {1, "", []string{"run", "--agent", "command", "--runs", dir, good, "--", "false"}},
		"no such job":       {1, "", []string{"job", "show", filepath.Join(dir, "none")}},
		"a flag":            {2, "--nope", []string{"version", "--nope"}},
		"a value":           {2, "--timeout: \"soon\"", []string{"version", "--timeout", "soon"}},
		"no time":           {2, "--timeout: -1s is not valid", []string{"version", "--timeout", "-1s"}},
		"too many":          {2, `turngate version: "x" is one argument too many`, []string{"version", "x"}},
		"no such command":   {2, `"nope" is no command of turngate: want`, []string{"nope"}},
		"a typo":            {2, `"wrker" is no command of turngate: want worker`, []string{"wrker"}},
		"no such job's one": {2, `"nope" is no command of turngate job: want`, []string{"job", "nope"}},
		"help with a typo":  {2, `"rnu" is no command of turngate: want run`, []string{"help", "rnu"}},
		"help of a sub-one": {2, `"shwo" is no command of turngate job: want show`, []string{"help", "job", "shwo"}},
		"a typo's help":     {2, `"rnu" is no command of turngate: want run`, []string{"rnu", "--help"}},
		"a sub-one's help":  {2, `"shwo" is no command of turngate job: want show`, []string{"job", "shwo", "-h"}},
		"a service's help":  {2, `"lss" is no command of turngate worker: want ls`, []string{"worker", "lss", "--help"}},
		"a service's typo":  {2, `"lss" is no command of turngate worker: want ls`, []string{"worker", "lss"}},
		"a typo, a flag":    {2, `"rnu" is no command of turngate: want run`, []string{"rnu", "-n", "4", "--help"}},
		"a sub-one, a flag": {2, `"shwo" is no command of turngate job: want show`, []string{"job", "shwo", "-o", "json"}},
		"no such shell":     {2, `"bsah" is no command of turngate completion: want bash`, []string{"completion", "bsah"}},
		"far from rm":       {2, `"ls" is no command of turngate trainer: want add, rm or serve`, []string{"trainer", "ls"}},
		"no duration":       {2, `--since: "yesterday" is not valid: want a duration such as 90s`, []string{"tap", "--since", "yesterday"}},
		"no whole number":   {2, `--port: "x" is not valid: want a whole number`, []string{"up", "--port", "x"}},
		"neither nor":       {2, `--open: "ja" is not valid: want true or false`, []string{"up", "--open=ja"}},
		"help by a flag":    {0, "turngate job show DIR", []string{"job", "show", "--help"}},
		"help of a group":   {0, "Usage:", []string{"--help", "job"}},
		"a folder's name":   {0, "next: turngate task check '", []string{"task", "init", filepath.Join(t.TempDir(), "a b")}},
		"help for one":      {0, "turngate job show DIR", []string{"help", "job", "show"}},
		"its time is over":  {124, "--timeout: 1s are over", append([]string{"--timeout", "1s"}, long...)},
		"a service in time": {0, "", []string{"console", "--timeout", "1s", dir}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := turngate(t, binary, tt.args...)
			if got.code != tt.code || !strings.Contains(got.out+got.errOut, tt.says) {
				t.Errorf("%+v", got)
			}
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			cmd := exec.Command(binary, long...)
			stderr, err := cmd.StderrPipe()
			harness.Must(t, err)
			harness.Must(t, cmd.Start())
			for lines, sent := bufio.NewScanner(stderr), false; lines.Scan(); {
				if !sent && strings.Contains(lines.Text(), "phase agent") {
					harness.Must(t, cmd.Process.Signal(sig))
					sent = true
				}
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
				t.Errorf("%v: %v", sig, err)
			}
		}
	})
}

// TestAFileOfUpstreams with an unknown field names it, its line and the fields that
// there are.
func TestAFileOfUpstreams(t *testing.T) {
	dir := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done, "up.yaml": "a:\n  url: http://127.0.0.1:1\n  fake: 1\n", "bad/instruction.md": "x", "bad/replay.yaml": "steps:\n- txet: Done.\n"})
	for _, args := range [][]string{{"worker", "--upstreams", filepath.Join(dir, "up.yaml")}, {"run", "--upstreams", filepath.Join(dir, "up.yaml"), dir}} {
		got := turngate(t, testenv.Binary(t), args...)
		if got.code != 2 || !strings.Contains(got.errOut, "up.yaml: line 3: a.fake is no field: want url, key_file, model,") || strings.Contains(got.errOut, "main.") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := turngate(t, testenv.Binary(t), "run", filepath.Join(dir, "bad")); got.code == 0 || !strings.Contains(got.errOut+got.out, "line 2: steps[0].txet is no field: want text, reasoning, run,") || strings.Contains(got.errOut+got.out, "replay.") && strings.Contains(got.errOut+got.out, "type replay") {
		t.Errorf("%+v", got)
	}
}
