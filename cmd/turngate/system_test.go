package main_test

import (
	"bufio"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// until runs a command until it has written a line with text, to stdout or stderr, and
// interrupts it. It returns that line and the exit status.
func (p person) until(t *testing.T, text string, args ...string) (line string, code int) {
	t.Helper()
	cmd := p.command(t, args...)
	said, err := cmd.StdoutPipe()
	harness.Must(t, err)
	cmd.Stderr = cmd.Stdout
	harness.Must(t, cmd.Start())
	var all strings.Builder
	for lines := bufio.NewScanner(said); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if line == "" && strings.Contains(lines.Text(), text) {
			line = lines.Text()
			harness.Must(t, cmd.Process.Signal(syscall.SIGINT))
		}
	}
	_ = cmd.Wait()
	if line == "" {
		t.Fatalf("%v: no %q in %s", args, text, all.String())
	}
	return line, cmd.ProcessState.ExitCode()
}

// workers lists the workers of the current context.
func (p person) workers(t *testing.T) (out []string) {
	t.Helper()
	var all []struct{ Worker string }
	harness.Must(t, json.Unmarshal([]byte(p.turngate(t, "worker", "ls", "-o", "json").out), &all))
	for _, w := range all {
		out = append(out, w.Worker)
	}
	return out
}

// TestCommandsOfARunningSystem runs rollouts on a system and looks at them and at its
// queues.
func TestCommandsOfARunningSystem(t *testing.T) {
	testenv.Slow(t)
	p := newPerson(t)
	state := t.TempDir()
	p.up(t, "--state", filepath.Join(state, "lab"))
	check := func(code int, says string, args ...string) outcome {
		t.Helper()
		got := p.turngate(t, args...)
		if got.code != code || !strings.Contains(got.out+got.errOut, says) {
			t.Errorf("%v: %+v\nwant %d, %q", args, got, code, says)
		}
		return got
	}
	check(0, "", "context", "use", "up-lab")
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done, "task.toml": "[task]\nname = \"org/good\"\n"})
	run := func(code int, args ...string) schema.Result {
		t.Helper()
		return results(t, check(code, "", append([]string{"run", "-o", "json", "--out", filepath.Join(t.TempDir(), "j")}, args...)...))[0]
	}
	well := run(0, good)
	bad := run(1, "--agent", "command", good, "--", "false")

	check(0, "result done", "rollout", "watch", string(well.ID))
	check(1, "reward null, agent: exit", "rollout", "watch", string(bad.ID))
	check(0, "reward null, agent: exit", "tap", string(bad.ID))
	if got := check(0, `"type":"result"`, "rollout", "watch", "-o", "jsonl", "--type", "result", string(well.ID)); strings.Count(got.out, "\n") != 1 {
		t.Errorf("%+v", got)
	}
	check(1, "there is no rollout of that id", "tap", "local-none")
	check(1, "there is no trainer nobody", "rollout", "watch", "nobody-1")
	check(2, `--type: "x" is not valid: want one of phase, step, llm, log, wait, net, verify, shell, result`, "tap", "--type", "x")
	for _, filter := range [][]string{{"--group", well.Group}, {"--trainer", "local", "--type", "result"}, {"--task", "org/good"}} {
		line, code := p.until(t, `"type":"result"`, append([]string{"tap", "--since", "1h", "-o", "jsonl"}, filter...)...)
		var e schema.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Result == nil || code != 130 || filter[0] == "--group" && e.Rollout != well.ID {
			t.Errorf("%v: %d, %s, %v", filter, code, line, err)
		}
	}

	readsGroups(t, p, filepath.Join(state, "lab"))
	showsTop(t, p)

	check(2, `sandbox.backend: "docker" is not valid: want a sandbox of a worker that is there: local`, "run", "--sandbox", "docker", "--image", "none", "--agent", "nop", "--out", filepath.Join(t.TempDir(), "j"), good)
	// A request that no worker can run: its reason is on the submitter's screen, and in the queue.
	gpu := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done, "task.toml": "[task]\nname = \"org/gpu\"\n[environment]\ngpus = 1\n"})
	line, code := p.until(t, "gpus", "run", "--agent", "nop", "--out", filepath.Join(t.TempDir(), "j"), gpu)
	if !strings.Contains(line, "sandbox.gpus") || code != 130 {
		t.Errorf("%d: %s", code, line)
	}
	type lane struct {
		Trainer, Lane string
		Queued        uint64
		Oldest        *float64 `json:"oldest_seconds"`
		Parked        struct{ Delay, Needs uint64 }
	}
	harness.Eventually(t, "four lanes without a queued request", 5*time.Minute, func() bool {
		var lanes []lane
		got := check(0, "", "queue", "ls", "-o", "json", "--trainer", "local")
		harness.Must(t, json.Unmarshal([]byte(got.out), &lanes))
		return len(lanes) == 4 && !slices.ContainsFunc(lanes, func(l lane) bool { return l.Trainer != "local" || l.Queued > 0 || l.Oldest != nil })
	})
	check(0, "TRAINER", "queue", "ls")
	check(0, "p3", "queue", "ls", "-o", "wide")
	check(2, `--trainer: trainer: "A b"`, "queue", "ls", "--trainer", "A b")

	for _, list := range [][]string{{"worker", "ls"}, {"queue", "ls"}, {"group", "ls"}, {"dead", "ls"}, {"agent", "ls"}, {"rollout", "ls"}, {"context", "ls"}, {"job", "ls"}, {"sandbox", "ls"}, {"machine", "ls"}, {"image", "ls"}} {
		check(2, `"xml" is not valid: want table, wide, json, jsonl or yaml`, append(slices.Clone(list), "-o", "xml")...)
		if list[0] == "machine" || list[0] == "image" { // one listens for 3 s, the other needs Docker
			continue
		}
		if got := check(0, "", append(slices.Clone(list), "-o", "json")...); !json.Valid([]byte(got.out)) {
			t.Errorf("%v: %s", list, got.out)
		}
	}
	for _, format := range []string{"table", "wide", "jsonl", "yaml"} {
		check(0, "nop", "agent", "ls", "-o", format)
	}
	for want, args := range map[string][]string{
		"up-lab\n": {"run", "--context", ""}, "local\n": {"run", "--sandbox", ""}, "opencode\n": {"run", "--agent", ""}, "jsonl\n": {"worker", "ls", "-o", ""}, "mini\n": {"agent", "install", ""},
	} {
		check(0, want, append([]string{"__complete"}, args...)...)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{string(well.ID), []string{"rollout", "get", ""}},
		{string(bad.ID), []string{"tap", ""}},
		{string(bad.ID), []string{"rollout", "watch", "--context", "up-lab", ""}},
		{well.Group, []string{"group", "get", ""}},
		{"local", []string{"trainer", "rm", ""}},
		{p.workers(t)[0], []string{"worker", "rm", ""}},
	} {
		if got := check(0, c.want+"\n", append([]string{"__complete"}, c.args...)...); !strings.Contains(got.out, "\n:4\n") { // no files
			t.Errorf("%v: %+v", c.args, got)
		}
	}
	check(0, ":0", "__complete", "rollout", "get", "--runs", t.TempDir(), "")
	if got := check(0, ":4", "__complete", "rollout", "get", "--nats", "nats://127.0.0.1:1", ""); strings.Contains(got.out+got.errOut, "127.0.0.1") {
		t.Errorf("%+v", got)
	}
	if got := check(0, "up-lab\n", "__complete", "context", "use", ""); strings.Contains(got.out, "local") {
		t.Errorf("%+v", got)
	}
}
