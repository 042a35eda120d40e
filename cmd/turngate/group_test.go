package main_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// readsGroups runs a group of three rollouts, and reads it as an operator, as its trainer
// and from the job's folder. state is that of the current context's server.
func readsGroups(t *testing.T, p person, state string) {
	t.Helper()
	dir := task(t, map[string]string{
		"instruction.md": "x", "replay.yaml": done, "task.toml": "[task]\nname = \"org/group\"\n",
		"tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
	})
	runs := t.TempDir()
	job := filepath.Join(runs, "j")
	got := p.turngate(t, "run", "--agent", "nop", "-n", "3", "-o", "json", "--out", job, dir)
	list := results(t, got)
	if len(list) != 3 {
		t.Fatalf("%+v", got)
	}
	name := list[0].Group
	creds := filepath.Join(state, "creds")
	url := p.turngate(t, "context", "show").out
	var at struct{ URL string }
	harness.Must(t, json.Unmarshal([]byte(url), &at))
	type group struct {
		Trainer, Group, Task string
		Rollouts, Ended      int
		States               map[string]int
		Mean                 *float64
		PassAt               map[int]float64 `json:"pass_at"`
		Faults               []struct{ Code string }
		Members              []struct {
			Rollout   schema.ID
			Index     int
			Advantage *float64
			Versions  []string
		}
	}
	for who, where := range map[string][]string{
		"operator": {},
		"trainer":  {"--nats", at.URL, "--creds", filepath.Join(creds, "trainer-local.nk")},
		"folder":   {"--runs", runs},
	} {
		all := p.turngate(t, append([]string{"group", "ls", "-o", "json"}, where...)...)
		var groups []group
		harness.Must(t, json.Unmarshal([]byte(all.out), &groups))
		found := false
		for _, g := range groups {
			if g.Group == name {
				found = true
				if g.Rollouts != 3 || g.Ended != 3 || g.States["done"] != 3 || g.Mean == nil || g.Trainer != "local" || g.PassAt[2] != 1 || g.Faults == nil || g.Members != nil {
					t.Errorf("%s: %+v", who, g)
				}
			}
		}
		if !found {
			t.Errorf("%s: no group %s in %+v", who, name, all)
		}
		one := p.turngate(t, append([]string{"group", "get", "-o", "json", name}, where...)...)
		harness.Must(t, json.Unmarshal([]byte(one.out), &groups))
		if len(groups) != 1 || len(groups[0].Members) != 3 || *groups[0].Mean != 1 {
			t.Fatalf("%s: %+v", who, one)
		}
		for i, m := range groups[0].Members {
			if m.Index != i || m.Rollout != list[i].ID || m.Advantage == nil || *m.Advantage != 0 || m.Versions == nil {
				t.Errorf("%s: %+v", who, m)
			}
		}
		for _, format := range []string{"table", "wide", "jsonl", "yaml"} {
			for _, args := range [][]string{{"ls"}, {"get", name}} {
				got := p.turngate(t, append(append([]string{"group"}, args...), append([]string{"-o", format}, where...)...)...)
				if got.code != 0 || !strings.Contains(got.out, name) || strings.Contains(got.out, "\x1b") {
					t.Errorf("%s, %v, %s: %+v", who, args, format, got)
				}
			}
		}
	}
	if got := p.turngate(t, "group", "get", name, "nothing"); got.code != 1 || !strings.Contains(got.errOut, `no rollout of the group "nothing"`) || !strings.Contains(got.out, "3 done") {
		t.Errorf("%+v", got)
	}
	if got := p.turngate(t, "group", "ls", "--before", "9"); got.code != 2 || !strings.Contains(got.errOut, "--before: want --trainer") {
		t.Errorf("%+v", got)
	}
}
