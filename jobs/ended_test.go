package jobs_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// A job of rollouts that ended elsewhere can be read again, also if their trainer named
// no groups: the rollouts of a task are a group then.
func TestEndedRolloutsBecomeAJob(t *testing.T) {
	var list []jobs.Ended
	var results []schema.Result
	for i := range 6 {
		reward := float64(i % 2)
		r := schema.Result{V: schema.Version, ID: schema.ID(fmt.Sprintf("alpha-%d", i)), Trainer: "alpha", Index: 7, Task: "org/x", Status: schema.StatusDone, Reward: &reward, Agent: "mini"}
		if i >= 4 {
			r.Task = "y"
		}
		list, results = append(list, jobs.Ended{Variant: jobs.Variant{Agent: "mini"}, Result: &r}), append(results, r)
	}
	p := jobs.Plan{Backend: "local", Parallel: 1, Flags: map[string][]string{}, Args: []string{}}
	p.AddEnded(list)
	j, err := jobs.Create(filepath.Join(t.TempDir(), "j"), p)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for _, r := range results {
		if err := j.Put(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	got, ended, err := jobs.Read(j.Dir)
	if err != nil || len(ended) != 6 || got.Attempts != 4 || got.Trials[0].Group != got.Trials[3].Group || got.Trials[0].Group == got.Trials[4].Group {
		t.Fatalf("%v, %+v", err, got)
	}
	if s := jobs.Sum(6, ended); s.PassAt[2] < 0.9166 || s.PassAt[2] > 0.9167 || s.PassAt[4] != 1 { // x: 2 of 4, 5/6; y: 1 of 2, 1
		t.Errorf("got %v", s.PassAt)
	}
}
