package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// The exit statuses of the binary.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
)

// A run's rollout is listed, shown, exported, copied, and run again with the same
// calls; a task that has changed makes the agent diverge.
func TestRolloutsOfARun(t *testing.T) {
	binary := testenv.Binary(t)
	runs := func(args ...string) (int, string, string) {
		o := turngate(t, binary, args...)
		return o.code, o.out, o.errOut
	}
	dir := task(t, map[string]string{"instruction.md": "Say what is in a.txt.", "replay.yaml": "steps:\n- run: cat /etc/turngate-none || echo \"$WORD\"\n- text: Done.\n", "task.toml": "[agent]\n", "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"})
	job := filepath.Join(t.TempDir(), "j")
	if code, _, said := runs("run", "--out", job, dir); code != exitOK {
		t.Fatal(said)
	}
	code, out, said := runs("rollout", "ls", "-o", "json", job)
	var results []struct{ ID string }
	if code != exitOK || json.Unmarshal([]byte(out), &results) != nil || len(results) != 1 {
		t.Fatalf("got %d, %s, %s", code, out, said)
	}
	id, all := results[0].ID, filepath.Dir(job)
	if code, out, said := runs("rollout", "show", "--runs", all, id); code != exitOK || !strings.Contains(out, "assistant calls bash") || !strings.Contains(out, "call 2") {
		t.Errorf("got %d, %s, %s", code, out, said)
	}
	if code, out, _ := runs("rollout", "get", job); code != exitOK || !strings.Contains(out, `"reward": 1`) {
		t.Errorf("got %d, %s", code, out)
	}
	if code, _, said := runs("rollout", "export", "--strict", job); code != exitFault || !strings.Contains(said, "no call can be trained on") {
		t.Errorf("got %d, %s", code, said)
	}
	atif := filepath.Join(t.TempDir(), "a.jsonl")
	if code, _, said := runs("rollout", "export", "--format", "atif", "--out", atif, job); code != exitOK || !strings.Contains(said, "1 rollout as atif") {
		t.Errorf("got %d, %s", code, said)
	}
	if data, err := os.ReadFile(atif); err != nil || !strings.Contains(string(data), `"schema_version":"ATIF-v1.8"`) {
		t.Errorf("got %s, %v", data, err)
	}
	to := t.TempDir()
	if code, out, said := runs("rollout", "cp", job, "agent/*.zst", to); code != exitOK || out != "agent/transcript.jsonl.zst\n" {
		t.Errorf("got %d, %s, %s", code, out, said)
	}
	if code, out, said := runs("rollout", "replay", job); code != exitOK || out != "the agent made the same 2 calls\n" {
		t.Errorf("got %d, %s, %s", code, out, said)
	}
	if err := os.WriteFile(filepath.Join(dir, "instruction.md"), []byte("Say what is in b.txt."), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, said = runs("rollout", "replay", "--task", dir, "--agent", "mini", filepath.Join(to, "agent/transcript.jsonl.zst"))
	if code != exitFault || !strings.Contains(out, "call 1 diverges from recorded call 1 at message 1; 1 more calls diverge") || !strings.Contains(out, "b.txt") {
		t.Errorf("got %d, %s, %s", code, out, said)
	}
}

func TestRolloutCommandsRefuseMistakes(t *testing.T) {
	binary := testenv.Binary(t)
	for name, args := range map[string][]string{
		"no such rollout": {"rollout", "show", "--runs", t.TempDir(), "none"},
		"two trainers":    {"rollout", "cancel", "alpha-01", "beta-01"},
		"bad id":          {"rollout", "get", "--nats", "nats://127.0.0.1:1", "x y"},
		"bad format":      {"rollout", "export", "--format", "csv", "x"},
		"bad role":        {"rollout", "export", "--roles", "judge", "x"},
		"no rollout":      {"rollout", "export"},
		"harbor of a job": {"rollout", "export", "--format", "harbor", "--out", t.TempDir(), "x"},
		"harbor, no out":  {"rollout", "export", "--format", "harbor", "--nats", "nats://127.0.0.1:1", "alpha-01"},
		"job on a system": {"rollout", "ls", "--nats", "nats://127.0.0.1:1", t.TempDir()},
		"two replays":     {"rollout", "replay", "a", "b"},
	} {
		o := turngate(t, binary, args...)
		code, said := o.code, o.errOut
		if want := map[bool]int{true: exitFault, false: exitUsage}[name == "no such rollout"]; code != want || said == "" {
			t.Errorf("%s: got %d, %s", name, code, said)
		}
	}
}
