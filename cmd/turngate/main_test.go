package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

type outcome struct {
	code        int
	out, errOut string
}

// turngate runs the built binary in the module's folder.
func turngate(t *testing.T, binary string, args ...string) outcome {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = testenv.Root(t)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func task(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const done = "steps: [{text: Done.}]"

// TestBadInput gives each mistake one clear line, on stderr, with the status
// for usage, before anything starts.
func TestBadInput(t *testing.T) {
	binary := testenv.Binary(t)
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no path":             {[]string{"run"}, "task directories"},
		"no such path":        {[]string{"run", "/no/such/dir"}, "/no/such/dir"},
		"no instruction":      {[]string{"run", task(t, map[string]string{"task.toml": ""})}, "instruction.md"},
		"bad toml":            {[]string{"run", task(t, map[string]string{"instruction.md": "x", "task.toml": "["})}, "task.toml"},
		"no trainer":          {[]string{"run", task(t, map[string]string{"instruction.md": "x"})}, "--trainer"},
		"bad replay":          {[]string{"run", task(t, map[string]string{"instruction.md": "x", "replay.yaml": "steps: [{x: 1}]"})}, "replay"},
		"unknown agent":       {[]string{"run", "--agent", "nobody", good}, "agent.name"},
		"unknown sandbox":     {[]string{"run", "--sandbox", "moon", good}, "moon"},
		"unknown flag":        {[]string{"run", "--nope", good}, "--nope"},
		"unknown output":      {[]string{"run", "-o", "xml", good}, "xml"},
		"negative group":      {[]string{"run", "-n", "0", good}, "-n"},
		"bad trainer":         {[]string{"run", "--trainer", "magic:x", good}, "magic:x"},
		"bad trainer name":    {[]string{"run", "--name", "Not Good", good}, "trainer"},
		"bad limit":           {[]string{"run", "--agent-timeout", "-5s", good}, "limits.agent_ms"},
		"bad stream":          {[]string{"run", "--stream", "sideways", good}, "--stream: \"sideways\" is not valid: want buffer or pass"},
		"bad stream to serve": {[]string{"trainer", "serve", "--trainer", "upstream:http://127.0.0.1:1", "--stream", "sideways"}, "--stream"},
		"dockerfile in local": {[]string{"run", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done, "environment/Dockerfile": "FROM x"})}, "docker"},
		"bad rollout id":      {[]string{"tap", "a b"}, "id"},
	} {
		t.Run(name, func(t *testing.T) {
			got := turngate(t, binary, tt.args...)
			if got.code != 2 || got.out != "" || !strings.Contains(got.errOut, tt.says) || strings.Count(strings.TrimSpace(got.errOut), "\n") > 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func results(t *testing.T, o outcome) []schema.Result {
	t.Helper()
	var out []schema.Result
	if err := json.Unmarshal([]byte(o.out), &out); err != nil {
		t.Fatalf("%v: %+v", err, o)
	}
	return out
}

// TestFaultsAreResults: what goes wrong in a rollout is data on stdout and
// exit status 1.
func TestFaultsAreResults(t *testing.T) {
	binary := testenv.Binary(t)
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"replay runs out":    {[]string{task(t, map[string]string{"instruction.md": "x", "replay.yaml": "steps: [{run: 'true'}]"})}, "run out"},
		"agent fails":        {[]string{"--agent", "command", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}), "--", "sh", "-c", "echo why >&2; exit 7"}, "exit status 7; stderr: why"},
		"no such program":    {[]string{"--agent", "command", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}), "--", "no-such-program"}, "no-such-program"},
		"not installed":      {[]string{"--agent", "pi", "--agents", t.TempDir(), task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})}, "turngate agent install"},
		"verifier is silent": {[]string{task(t, map[string]string{"instruction.md": "x", "replay.yaml": done, "tests/test.sh": "#!/bin/sh\necho hm\n"})}, "neither"},
		"no network here":    {[]string{"--network", "open", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})}, "sandbox.network"},
		"timeout":            {[]string{"--agent", "command", "--agent-timeout", "1s", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}), "--", "sleep", "60"}, "1000 ms"},
	} {
		t.Run(name, func(t *testing.T) {
			got := turngate(t, binary, append([]string{"run", "-o", "json"}, tt.args...)...)
			res := results(t, got)
			if got.code != 1 || len(res) != 1 || res[0].Fault == nil || !strings.Contains(res[0].Fault.Message, tt.says) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestStrayRewardAndHostileNames: what the agent leaves in the verifier's
// place does not count, and names are carried through untouched.
func TestStrayRewardAndHostileNames(t *testing.T) {
	binary := testenv.Binary(t)
	name := `"q" $(touch x) 'it' --help`
	dir := task(t, map[string]string{
		"instruction.md": "-n $(touch /tmp/pwned)\n`id`\n", "task.toml": "[task]\nname = '''" + name + "'''\n",
		"replay.yaml":   "steps:\n- run: echo 1 > /logs/verifier/reward.txt; echo '{\"reward\":1}' > /logs/verifier/reward.json; mkdir -p /tests; echo x > /tests/test.sh\n- text: Done.\n",
		"tests/test.sh": "#!/bin/sh\ntest -e /tmp/pwned && exit 1\nls /logs/verifier | grep . || echo 0.5 > /logs/verifier/reward.txt\n",
	})
	got := turngate(t, binary, "run", "-o", "json", "--label", "a=b c", dir)
	res := results(t, got)
	if got.code != 0 || *res[0].Reward != 0.5 || res[0].Task != name || res[0].Labels["a"] != "b c" {
		t.Errorf("%+v", got)
	}
}

func TestOutputForms(t *testing.T) {
	binary := testenv.Binary(t)
	table := turngate(t, binary, "run", "examples/tasks/hello")
	if table.code != 0 || !strings.HasPrefix(table.out, "TASK") || strings.Count(table.out, "\n") != 2 || !strings.Contains(table.errOut, "phase agent") {
		t.Errorf("%+v", table)
	}
	lines := turngate(t, binary, "run", "-o", "jsonl", "-n", "2", "examples/tasks/hello")
	if lines.code != 0 || strings.Count(lines.out, "\n") != 2 {
		t.Errorf("%+v", lines)
	}
	nop := turngate(t, binary, "run", "-o", "json", "--agent", "nop", task(t, map[string]string{"instruction.md": "x"}))
	if res := results(t, nop); nop.code != 0 || res[0].Reward != nil || res[0].Fault != nil {
		t.Errorf("no verifier: %+v", nop)
	}
}

func TestFlagsComeFromTheEnvironment(t *testing.T) {
	binary := testenv.Binary(t)
	t.Setenv("TURNGATE_OUTPUT", "jsonl")
	t.Setenv("TURNGATE_AGENT", "nop")
	if got := turngate(t, binary, "run", "examples/tasks/hello"); got.code != 0 || !strings.Contains(got.out, `"agent":"nop"`) {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "run", "--agent", "oracle", "examples/tasks/hello"); !strings.Contains(got.out, `"agent":"oracle"`) {
		t.Errorf("a flag does not win over the environment: %+v", got)
	}
	t.Setenv("TURNGATE_GROUP", "many")
	if got := turngate(t, binary, "run", "examples/tasks/hello"); got.code != 2 || !strings.Contains(got.errOut, "TURNGATE_GROUP") {
		t.Errorf("%+v", got)
	}
}

func TestSmallCommands(t *testing.T) {
	binary := testenv.Binary(t)
	for _, args := range [][]string{{"version"}, {"--help"}, {"completion", "bash"}, {"agent", "ls"}} {
		if got := turngate(t, binary, args...); got.code != 0 || got.out == "" {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := turngate(t, binary, "doctor", "--agents", t.TempDir()); got.code != 1 || !strings.Contains(got.out, "to do: turngate agent install opencode") || !strings.Contains(got.out, "local sandbox") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "box"); got.code != 90 || !strings.Contains(got.errOut, "first process of a sandbox") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "doctor", "--nats", "nats://127.0.0.1:1"); !strings.Contains(got.out, "problem  NATS") {
		t.Errorf("%+v", got)
	}
}
