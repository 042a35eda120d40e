package e2e_test

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
)

// makeTask makes a task directory from the texts of its files, without execute
// bits.
func makeTask(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "task")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const reward = "/logs/verifier/reward.txt"

// TestScriptsAsTheyArePublished runs scripts of tasks without an execute bit, with
// every kind of first line, and as different users.
func TestScriptsAsTheyArePublished(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local")
	for _, tt := range []struct {
		name  string
		files map[string]string
		agent string // default nop
		args  []string
		root  bool // only root has other users in a local sandbox
		notes int
	}{
		{name: "bash without an execute bit", files: map[string]string{"tests/test.sh": "#!/bin/bash\n[[ -d /logs/artifacts && $0 == /tests/test.sh ]] && echo 1 > " + reward}},
		{name: "no first line", files: map[string]string{"tests/test.sh": "set -o pipefail\n[[ 1 ]] && echo 1 > " + reward}},
		{name: "an interpreter with an argument", files: map[string]string{"tests/test.sh": "#! /bin/sh  -e\ntrue\necho 1 > " + reward + "\nfalse\necho 0 > " + reward}},
		{name: "CR LF", notes: 1, files: map[string]string{
			"tests/data.txt": "kept\r\n",
			"tests/test.sh":  "#!/bin/bash\r\nset -e\r\nif [ \"$(wc -c < /tests/data.txt)\" = 6 ]; then\r\n  echo 1 > " + reward + "\r\nfi\r\n"}},
		{name: "the order of variables", args: []string{"--verifier-env", "C=run"}, files: map[string]string{
			"task.toml":     "[environment.env]\nA = 'environment'\nB = 'environment'\nC = 'environment'\n[verifier.env]\nB = 'verifier'\nC = 'verifier'\n",
			"tests/test.sh": "[ \"$A $B $C\" = 'environment verifier run' ] && echo 1 > " + reward}},
		{name: "the solution and its variables", agent: "oracle", files: map[string]string{
			"task.toml":         "[solution.env]\nNAME = 'solved'\n",
			"solution/solve.sh": "#!/bin/bash\r\necho -n $NAME > out.txt\r\n", "tests/test.sh": "[ \"$(cat out.txt)\" = solved ] && echo 1 > " + reward}, notes: 1},
		{name: "other users", root: true, agent: "command", files: map[string]string{
			"replay.yaml":   "steps: [{text: x}]\n",
			"task.toml":     "[agent]\nuser = 'agent'\n[verifier]\nuser = 'nobody'\n",
			"tests/test.sh": "[ -s /logs/agent/mine ] && [ ! -e /logs/verifier/planted ] && [ $(id -u) = 65534 ] && echo 1 > " + reward}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root && os.Geteuid() != 0 {
				t.Skip("SKIPPED: the local sandbox of an ordinary user has no other users")
			}
			tt.files["instruction.md"] = "Do it."
			args := append([]string{"--agent", cmp.Or(tt.agent, "nop"), "--network", "none"}, tt.args...)
			args = append(args, makeTask(t, tt.files))
			if tt.agent == "command" {
				args = append(args, "--", "sh", "-c", "echo 1 > /logs/agent/mine; echo > /logs/verifier/planted; echo > /logs/artifacts/a")
			}
			p := b.run(t, args...)
			if code := p.wait(t, 10*time.Minute); code != 0 {
				t.Fatalf("exit status %d", code)
			}
			r := results(t, p)[0]
			if r.Reward == nil || *r.Reward != 1 || r.Fault != nil || len(r.Notes) != tt.notes {
				t.Fatalf("reward %v, fault %v, notes %q", r.Reward, r.Fault, r.Notes)
			}
		})
	}
}
