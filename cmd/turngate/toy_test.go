package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// toyOverlay returns an overlay for the go command: the module with the files in
// testdata/toy, and a line for each in the lists of backends and agents.
func toyOverlay(t *testing.T) string {
	t.Helper()
	root, dir := testenv.Root(t), t.TempDir()
	toys := filepath.Join(root, "cmd/turngate/testdata/toy")
	replace := map[string]string{
		filepath.Join(root, "sandboxes/toy/toy.go"): filepath.Join(toys, "backend.go"),
		filepath.Join(root, "agents/toy.go"):        filepath.Join(toys, "agent.go"),
	}
	for _, list := range []struct{ file, after, line string }{
		{"internal/backends/backends.go", "\t\tmodal.Kind(),\n", "\t\ttoy.Kind(),\n"},
		{"internal/backends/backends.go", "\t\"github.com/turngate/turngate/internal/backends/ssh\"\n", "\t\"github.com/turngate/turngate/sandboxes/toy\"\n"},
		{"agents/spec.go", "\t\tnop(),\n", "\t\ttoy(),\n"},
	} {
		original := filepath.Join(root, list.file)
		from := original
		if changed := replace[original]; changed != "" {
			from = changed
		}
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(data), list.after) != 1 {
			t.Fatalf("%s has no single line %q", list.file, list.after)
		}
		changed := filepath.Join(dir, filepath.Base(list.file))
		if err := os.WriteFile(changed, []byte(strings.Replace(string(data), list.after, list.after+list.line, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[original] = changed
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// TestABackendAndAnAgentAreOneLineEach adds a backend and an agent to the lists.
// Every command knows them: flags, help, errors, doctor, the list of agents, and
// a worker that offers them.
func TestABackendAndAnAgentAreOneLineEach(t *testing.T) {
	testenv.Slow(t)
	overlay := toyOverlay(t)
	binary := testenv.BinaryWith(t, "-overlay", overlay)
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	names := strings.Join(backends.Names(), ", ")
	or, comma := names+" or toy", names+", toy"
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"help of run":          {[]string{"run", "--help"}, 0, or},
		"images of run":        {[]string{"run", "--help"}, 0, "image for the sandbox of " + strings.Join(backends.WithImages(), ", ") + " or toy"},
		"help of a check":      {[]string{"task", "check", "--help"}, 0, or},
		"help of agents":       {[]string{"agent", "ls", "--help"}, 0, or},
		"help of a worker":     {[]string{"worker", "--help"}, 0, comma},
		"unknown backend":      {[]string{"run", "--sandbox", "moon", good}, 2, "want " + or},
		"of a worker":          {[]string{"worker", "--sandboxes", "moon"}, 2, "want one of " + comma},
		"unknown agent":        {[]string{"run", "--agent", "nobody", good}, 2, "nop, toy"},
		"toy without images":   {[]string{"agent", "ls", "--check", "--sandbox", "toy"}, 2, "the toy sandbox needs one"},
		"list of agents":       {[]string{"agent", "ls"}, 0, "\ntoy "},
		"settings of an agent": {[]string{"run", "--agent", "toy", "--sandbox", "toy", "--image", "any", "--system-prompt", "x", good}, 1, "toy takes no system prompt"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := turngate(t, binary, tt.args...); got.code != tt.code || !strings.Contains(got.out+got.errOut, tt.says) {
				t.Errorf("no %q: %+v", tt.says, got)
			}
		})
	}
	if got := turngate(t, binary, "doctor"); !strings.Contains(got.out, "toy sandbox") {
		t.Errorf("doctor: %+v", got)
	}
	got := turngate(t, binary, "run", "--sandbox", "toy", "--image", "any", "--agent", "toy", "-o", "json", "examples/tasks/hello")
	var results []schema.Result
	if err := json.Unmarshal([]byte(got.out), &results); err != nil || len(results) != 1 || results[0].Reward == nil || *results[0].Reward != 1 {
		t.Errorf("a rollout: %v, %+v", err, got)
	}
	suite := exec.Command("go", "test", "-overlay", overlay, "-run", "TestEveryAgent$/^toy$", "-v", "./agents")
	suite.Dir = testenv.Root(t)
	if out, err := suite.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestEveryAgent/toy") {
		t.Errorf("the suite for agents: %v\n%s", err, out)
	}
}
