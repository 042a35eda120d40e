package recorded_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// A rollout of a job of Harbor has the calls of its trajectory, and its files.
func TestRolloutsOfHarbor(t *testing.T) {
	runs := t.TempDir()
	harness.Must(t, os.CopyFS(filepath.Join(runs, "mixed"), os.DirFS("../testdata/harbor/mixed")))
	trial := filepath.Join(runs, "mixed", "hello__5eLtK5T")
	for _, name := range []string{"hello__5eLtK5T", trial, filepath.Join(trial, "agent", "trajectory.json")} {
		list, err := recorded.Find(runs, name)
		harness.Must(t, err)
		if len(list) != 1 || list[0].ID.Trainer() != "harbor" || list[0].Result == nil {
			t.Fatalf("%s: got %+v", name, list)
		}
	}
	list, err := recorded.Find(runs, "hello__5eLtK5T")
	harness.Must(t, err)
	r := list[0]
	c, err := r.Read(t.Context(), trajectory.Options{Messages: true})
	harness.Must(t, err)
	rows := slices.Collect(c.Rows())
	if len(c.Calls) != 3 || c.Calls[2].Parent != 2 || c.ID != r.ID || *c.Reward != 1 || len(rows) != 1 || len(rows[0].InputIDs) != 10 || rows[0].LossMask[3] != 1 || len(c.Findings) != 1 {
		t.Errorf("got %d calls, %+v, %v", len(c.Calls), rows, c.Findings)
	}
	for _, name := range []string{"agent/trajectory.json", "artifacts/logs/artifacts/hello.txt", "verifier/reward.txt", "verifier/test-stdout.txt", "trial.log"} {
		if !slices.Contains(r.Files(), name) {
			t.Errorf("%q lacks %s", r.Files(), name)
		}
	}
	var out strings.Builder
	sum, err := recorded.Export(t.Context(), &out, "jsonl", list, trajectory.Options{})
	if err != nil || sum.Rows != 1 || len(sum.Skipped) != 0 {
		t.Errorf("got %+v, %v", sum, err)
	}
	oracle, err := recorded.Find(runs, "hello__jA7r222")
	harness.Must(t, err)
	if _, err := oracle[0].Read(t.Context(), trajectory.Options{}); !errors.Is(err, recorded.ErrNoTranscript) {
		t.Errorf("got %v", err)
	}
	if _, err := oracle[0].Log(t.Context(), false); err != nil {
		t.Error(err)
	}
}

// The agent's files lead to no file outside of its trial.
func TestLinksOfAnAgentOfHarbor(t *testing.T) {
	runs := t.TempDir()
	dir := filepath.Join(runs, "mixed")
	harness.Must(t, os.CopyFS(dir, os.DirFS("../testdata/harbor/mixed")))
	agent := filepath.Join(dir, "hello__5eLtK5T", "agent")
	record, err := os.ReadFile(filepath.Join(agent, "trajectory.json"))
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(filepath.Join(runs, "secret.json"), record, 0o600))
	find := func() *recorded.Rollout {
		t.Helper()
		list, err := recorded.Find(runs, "hello__5eLtK5T")
		harness.Must(t, err)
		return list[0]
	}
	for name, to := range map[string]string{"trajectory.json": "../../../secret.json", "oracle.txt": "../../../secret.json"} {
		_ = os.Remove(filepath.Join(agent, name))
		harness.Must(t, os.Symlink(to, filepath.Join(agent, name)))
	}
	if _, err := find().Read(t.Context(), trajectory.Options{}); err == nil {
		t.Error("a trajectory outside of the trial was read")
	}
	if data, err := find().Log(t.Context(), false); err == nil {
		t.Errorf("a log outside of the trial was read: %.100s", data)
	}
	harness.Must(t, os.Remove(filepath.Join(agent, "trajectory.json")))
	harness.Must(t, os.WriteFile(filepath.Join(agent, "trajectory.json"), []byte(`{"steps":[{"source":"agent","message":"x"}],"continued_trajectory_ref":"../../../secret.json"}`), 0o600))
	c, err := find().Read(t.Context(), trajectory.Options{})
	harness.Must(t, err)
	if len(c.Calls) != 1 || !slices.ContainsFunc(c.Findings, func(f trajectory.Finding) bool { return f.Code == "trajectory_part" }) {
		t.Errorf("got %d calls, %v", len(c.Calls), c.Findings)
	}
	if q := find(); q.Result.Status != schema.StatusDone {
		t.Errorf("got %+v", q.Result)
	}
}
