package compare_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// plan is a plan with one trial of each task.
func plan(t *testing.T, names ...string) jobs.Plan {
	t.Helper()
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Backend: "local", Attempts: 1, Parallel: 2}
	for _, n := range names {
		harness.Must(t, p.AddTask("alpha", jobs.Task{Name: n, Dir: "/tasks/" + n, Source: "tasks", Digest: strings.Repeat("a", 64)}))
	}
	return p
}

// job makes the folder of a job of the plan, whose trials have these rewards by the names
// of their folders, and a fault without one.
func job(t *testing.T, p jobs.Plan, rewards map[string]float64) string {
	t.Helper()
	j, err := jobs.Create(filepath.Join(t.TempDir(), "job"), p)
	harness.Must(t, err)
	defer j.Close()
	for _, tr := range j.Missing() {
		r := schema.Result{V: schema.Version, ID: tr.Rollout, Trainer: "alpha", Group: tr.Group, Index: tr.Index, Task: tr.Task, Attempt: 1, Status: schema.StatusDone, Agent: "mini"}
		if reward, ok := rewards[filepath.Base(tr.Dir)]; ok {
			r.Reward = &reward
		} else {
			r.Fault = schema.Faultf("agent", schema.CodeExit, schema.WhoAgent, "no")
		}
		harness.Must(t, j.Put(t.Context(), r, nil)) // no artifacts
	}
	return j.Dir
}

func TestDiff(t *testing.T) {
	changes, err := compare.Diff(
		job(t, plan(t, "better", "worse", "same", "broke", "gone", "fails"), map[string]float64{"better": 0, "worse": 1, "same": 1, "broke": 1}),
		job(t, plan(t, "better", "worse", "same", "broke", "new", "fails"), map[string]float64{"better": 1, "worse": 0, "same": 1, "new": 1}))
	harness.Must(t, err)
	got := map[string]string{}
	for _, c := range changes {
		got[c.Task] = c.Kind()
	}
	for task, want := range map[string]string{"better": compare.Better, "worse": compare.Worse, "same": compare.Same, "broke": compare.Unknown, "gone": compare.OnlyA, "new": compare.OnlyB, "fails": compare.Same} {
		if got[task] != want {
			t.Errorf("%s: %s, want %s", task, got[task], want)
		}
	}
}

// TestDiffOfTwins compares jobs with two tasks of one name: one got worse, the other
// better.
func TestDiffOfTwins(t *testing.T) {
	put := func(root string, x, y float64) string {
		p := plan(t, "x", "y", "other")
		for i := range p.Trials {
			tr := &p.Trials[i]
			if tr.Dir = filepath.Join(root, "tasks", tr.Task); tr.Task != "other" {
				tr.Task = "twin"
			}
		}
		return job(t, p, map[string]float64{"x": x, "y": y, "other": 0})
	}
	changes, err := compare.Diff(put("/a", 1, 0), put("/b", 0, 1))
	harness.Must(t, err)
	var got []string
	for _, c := range changes {
		got = append(got, c.Task+" "+c.Kind())
	}
	if want := []string{"other " + compare.Same, "twin (x) " + compare.Worse, "twin (y) " + compare.Better}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAdvantages(t *testing.T) {
	one, zero, tenth := 1.0, 0.0, 0.1
	mean, deviation, a := compare.Advantages([]*float64{&one, nil, &zero, &zero, &one})
	if *mean != 0.5 || *deviation != 0.5 || a[1] != nil || *a[0] != 1 || *a[2] != -1 {
		t.Errorf("mean %v, deviation %v, %v", *mean, *deviation, a)
	}
	mean, deviation, a = compare.Advantages([]*float64{&tenth, &tenth, &tenth}) // their sum is not 0.3
	if *mean != 0.1 || *deviation != 0 || *a[2] != 0 {
		t.Errorf("mean %v, deviation %v, %v", *mean, *deviation, *a[2])
	}
	mean, deviation, a = compare.Advantages([]*float64{nil})
	if mean != nil || deviation != nil || len(a) != 1 || a[0] != nil {
		t.Errorf("mean %v, deviation %v, %v", mean, deviation, a)
	}
}
