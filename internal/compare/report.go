package compare

import (
	"math"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// Report compares the variants of a job.
type Report struct {
	Name     string    `json:"name"`
	Variants []Cell    `json:"variants"` // over all tasks, in the order of the plan
	Tasks    []TaskRow `json:"tasks"`    // in the order of the plan
	// Retries counts the faults for which trials ran again. Their earlier results count
	// in no cell.
	Retries []jobs.Cause `json:"retries,omitempty"`
}

// TaskRow is a task with each of the job's variants.
type TaskRow struct {
	Task     string `json:"task"` // its title, as of jobs.TaskTitles
	Dir      string `json:"dir"`
	Variants []Cell `json:"variants"` // in the order of the plan
}

// Cell sums up the trials of one variant.
type Cell struct {
	jobs.Variant
	jobs.Summary
	// Interval is the Wilson score interval of the share of rollouts that passed, with
	// a confidence of 95 %. Null unless there are rewards, all of them 0 or 1.
	Interval *[2]float64 `json:"interval"`
}

// NewReport compares the variants of a job by its results so far.
func NewReport(p *jobs.Plan, results []schema.Result) Report {
	type place struct {
		jobs.Variant
		dir string
	}
	trials, ended, of := map[place]int{}, map[place][]schema.Result{}, map[schema.ID]place{}
	title := jobs.TaskTitles(p)
	out := Report{Name: p.Name, Tasks: []TaskRow{}, Retries: p.Causes()}
	for _, t := range p.Trials {
		at := place{t.Variant, t.Dir}
		if of[t.Rollout] = at; trials[place{dir: t.Dir}] == 0 {
			out.Tasks = append(out.Tasks, TaskRow{Task: title(&t), Dir: t.Dir})
		}
		for _, at := range []place{at, {Variant: t.Variant}, {dir: t.Dir}} {
			trials[at]++
		}
	}
	for _, r := range results {
		at := of[r.ID]
		ended[at] = append(ended[at], r)
		ended[place{Variant: at.Variant}] = append(ended[place{Variant: at.Variant}], r)
	}
	cells := func(dir string) (list []Cell) {
		for _, v := range p.Variants {
			at := place{v, dir}
			list = append(list, cell(v, trials[at], ended[at]))
		}
		return list
	}
	out.Variants = cells("")
	for i := range out.Tasks {
		out.Tasks[i].Variants = cells(out.Tasks[i].Dir)
	}
	return out
}

func cell(v jobs.Variant, trials int, results []schema.Result) Cell {
	c := Cell{Variant: v, Summary: jobs.Sum(trials, results)}
	if c.PassAt != nil && c.Mean != nil {
		c.Interval = wilson(*c.Mean, c.Rewarded)
	}
	return c
}

// wilson returns the score interval of a share of n trials (Wilson, "Probable
// Inference, the Law of Succession, and Statistical Inference", 1927).
func wilson(share float64, n int) *[2]float64 {
	const z = 1.959963984540054 // the normal distribution's quantile of 97.5 %
	k := float64(n)
	middle := share + z*z/(2*k)
	half := z * math.Sqrt(share*(1-share)/k+z*z/(4*k*k))
	scale := 1 + z*z/k
	return &[2]float64{max(0, (middle-half)/scale), min(1, (middle+half)/scale)}
}
