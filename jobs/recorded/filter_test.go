package recorded_test

import (
	"testing"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

func TestFilter(t *testing.T) {
	half := 0.5
	done := &recorded.Rollout{
		ID: "alpha-1", Job: "runs/monday", Title: "hello (two)", Trial: &jobs.Trial{Task: "hello", Dir: "/tasks/two", Variant: jobs.Variant{Agent: "mini"}},
		Result: &schema.Result{ID: "alpha-1", Task: "hello", Agent: "mini", Group: "g1", Status: schema.StatusDone, Reward: &half, Labels: map[string]string{"arm": "a"}},
	}
	open := &recorded.Rollout{ID: "alpha-2", Job: "runs/tuesday", Trial: &jobs.Trial{Task: "other", Dir: "/tasks/other", Group: "g2"}}
	queued := &recorded.Rollout{ID: "alpha-3", State: &schema.State{Status: schema.StatusQueued}, Asked: &schema.Request{Group: "g1", Task: schema.Task{Name: "hello"}, Labels: map[string]string{"arm": "b"}}}
	reward := func(text string) recorded.Filter {
		c, err := recorded.ParseReward(text)
		if err != nil {
			t.Fatal(err)
		}
		return recorded.Filter{Reward: c}
	}
	for name, tt := range map[string]struct {
		f    recorded.Filter
		want [3]bool
	}{
		"all":           {recorded.Filter{}, [3]bool{true, true, true}},
		"status":        {recorded.Filter{Statuses: []schema.Status{schema.StatusDone, schema.StatusQueued}}, [3]bool{true, false, true}},
		"open":          {recorded.Filter{Statuses: []schema.Status{recorded.StatusOpen}}, [3]bool{false, true, false}},
		"group":         {recorded.Filter{Group: "g1"}, [3]bool{true, false, true}},
		"task":          {recorded.Filter{Task: "hel*"}, [3]bool{true, false, true}},
		"task's folder": {recorded.Filter{Task: "two"}, [3]bool{true, false, false}},
		"task's title":  {recorded.Filter{Task: "hello (two)"}, [3]bool{true, false, false}},
		"agent":         {recorded.Filter{Agent: "mini"}, [3]bool{true, false, false}},
		"job":           {recorded.Filter{Job: "monday"}, [3]bool{true, false, false}},
		"path of a job": {recorded.Filter{Job: "runs/tues*"}, [3]bool{false, true, false}},
		"label":         {recorded.Filter{Labels: map[string]string{"arm": "b"}}, [3]bool{false, false, true}},
		"reward":        {reward("0.5"), [3]bool{true, false, false}},
		"above":         {reward("> 0.4"), [3]bool{true, false, false}},
		"not above":     {reward(">0.5"), [3]bool{}},
		"other":         {reward("!=1"), [3]bool{true, false, false}},
		"unknown":       {reward("none"), [3]bool{false, true, true}},
		"several":       {recorded.Filter{Group: "g1", Statuses: []schema.Status{schema.StatusQueued}}, [3]bool{false, false, true}},
	} {
		if got := [3]bool{tt.f.Has(done), tt.f.Has(open), tt.f.Has(queued)}; got != tt.want || tt.f.Empty() != (name == "all") {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, text := range []string{"", "x", ">", "=>1", "1e", "--1", "NaN", ">=0.5.1"} {
		if _, err := recorded.ParseReward(text); err == nil {
			t.Errorf("%q is valid", text)
		}
	}
}
