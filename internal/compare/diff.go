// Package compare compares rollouts by their results: the tasks of two jobs, the variants
// of one job, and the rollouts of a group.
package compare

import (
	"cmp"
	"slices"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// Change compares a task in two jobs, A and B.
type Change struct {
	Task string `json:"task"` // with the agent and the model if a job has several
	A    *Side  `json:"a"`    // null: the task is not in job A
	B    *Side  `json:"b"`    // null: the task is not in job B
}

// Side is a task in one job.
type Side struct {
	Trials int      `json:"trials"`
	Ended  int      `json:"ended"`
	Faults int      `json:"faults"`
	Reward *float64 `json:"reward"` // mean reward; null: not known
	// Rollouts are the rollouts of its trials, in the order of the plan.
	Rollouts []schema.ID `json:"rollouts"`
}

// The kinds of a change.
const (
	Same    = "same"
	Better  = "better"
	Worse   = "worse"
	Unknown = "unknown" // one of the rewards is not known
	OnlyA   = "missing in B"
	OnlyB   = "missing in A"
)

// Kind returns the kind of the change from A to B.
func (c *Change) Kind() string {
	switch {
	case c.B == nil:
		return OnlyA
	case c.A == nil:
		return OnlyB
	case c.A.Reward == nil && c.B.Reward == nil && c.A.Faults > 0 == (c.B.Faults > 0) && c.A.Ended > 0 == (c.B.Ended > 0):
		return Same
	case c.A.Reward == nil || c.B.Reward == nil:
		return Unknown
	case *c.A.Reward < *c.B.Reward:
		return Better
	case *c.A.Reward > *c.B.Reward:
		return Worse
	default:
		return Same
	}
}

// Diff compares two jobs by the names of their tasks. Tasks of one name in different
// folders are distinguished by the ends of their folders' paths. If a job has several
// variants, the tasks of each variant are compared.
func Diff(a, b string) ([]Change, error) {
	plans, results := make([]jobs.Plan, 2), make([][]schema.Result, 2)
	for i, dir := range []string{a, b} {
		var err error
		if plans[i], results[i], err = jobs.Read(dir); err != nil {
			return nil, err
		}
	}
	title, several := jobs.TaskTitles(&plans[0], &plans[1]), len(plans[0].Variants) > 1 || len(plans[1].Variants) > 1
	sides := make([]map[string]*Side, 2)
	for i, p := range plans {
		sides[i] = byTask(p, results[i], title, several)
	}
	var out []Change
	for task, s := range sides[0] {
		out = append(out, Change{task, s, sides[1][task]})
	}
	for task, s := range sides[1] {
		if sides[0][task] == nil {
			out = append(out, Change{task, nil, s})
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return cmp.Compare(a.Task, b.Task) })
	return out, nil
}

// byTask sums up the results of each task, or of each task and variant.
func byTask(p jobs.Plan, results []schema.Result, title func(*jobs.Trial) string, variants bool) map[string]*Side {
	out, list := map[string]*Side{}, map[string][]schema.Result{}
	names := map[schema.ID]string{}
	for _, t := range p.Trials {
		name := title(&t)
		if variants {
			name += " [" + t.Label() + "]"
		}
		names[t.Rollout] = name
		if out[name] == nil {
			out[name] = &Side{}
		}
		out[name].Trials++
		out[name].Rollouts = append(out[name].Rollouts, t.Rollout)
	}
	for _, r := range results {
		list[names[r.ID]] = append(list[names[r.ID]], r)
	}
	for task, s := range out {
		sum := jobs.Sum(s.Trials, list[task])
		s.Ended, s.Faults, s.Reward = sum.Ended, sum.Faults(), sum.Mean
	}
	return out
}
