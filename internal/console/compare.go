package console

import (
	"cmp"
	"math"
	"net/http"
	"slices"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// maxSide is the largest number of rollouts that are listed for a task of a job.
const maxSide = 64

// Comparison is two jobs task by task, as compare.Diff has them.
type Comparison struct {
	A      string         `json:"a"` // the name of the job's folder
	B      string         `json:"b"`
	Counts map[string]int `json:"counts"` // of tasks by the kind of their change
	// Tasks has those with a higher or a lower mean reward first, the largest changes in
	// front.
	Tasks []TaskChange `json:"tasks"`
	More  int          `json:"more,omitempty"` // tasks that are left out
}

// TaskChange is a task in both jobs.
type TaskChange struct {
	Task string   `json:"task"`
	Kind string   `json:"kind"`
	A    *JobSide `json:"a"` // null: the task is not in the job
	B    *JobSide `json:"b"`
}

// JobSide is a task in one job.
type JobSide struct {
	Trials   int      `json:"trials"`
	Ended    int      `json:"ended"`
	Faults   int      `json:"faults"`
	Reward   *float64 `json:"reward"` // the mean; null: not known
	Rollouts []Row    `json:"rollouts"`
}

// compare answers with the comparison of the jobs that the request names.
func (p *jobPages) compare(w http.ResponseWriter, r *http.Request) {
	a, b := r.URL.Query().Get("a"), r.URL.Query().Get("b")
	out, err := p.comparison(a, b)
	if err != nil {
		http.Error(w, plain.Line(err.Error(), maxFault), http.StatusNotFound)
		return
	}
	writeJSON(w, out)
}

func (p *jobPages) comparison(a, b string) (*Comparison, error) {
	out := &Comparison{A: a, B: b, Counts: map[string]int{}, Tasks: []TaskChange{}}
	var dirs []string
	rows := map[schema.ID]Row{}
	for _, name := range []string{a, b} {
		dir, err := p.dir(name)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
		list, err := recorded.InJob(dir)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			rows[r.ID] = rowOf(r)
		}
	}
	changes, err := compare.Diff(dirs[0], dirs[1])
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(changes, func(a, b compare.Change) int {
		return cmp.Or(cmp.Compare(order(&a), order(&b)), cmp.Compare(distance(&b), distance(&a)))
	})
	out.More = max(len(changes)-maxTasks, 0)
	for i, c := range changes {
		out.Counts[c.Kind()]++
		if i < maxTasks {
			out.Tasks = append(out.Tasks, TaskChange{cell(c.Task), c.Kind(), sideOf(c.A, rows), sideOf(c.B, rows)})
		}
	}
	return out, nil
}

// order places the kind of a change among the others.
func order(c *compare.Change) int {
	return slices.Index([]string{compare.Worse, compare.Better, compare.Unknown, compare.OnlyA, compare.OnlyB, compare.Same}, c.Kind())
}

// distance is the size of a change.
func distance(c *compare.Change) float64 {
	if c.A == nil || c.B == nil || c.A.Reward == nil || c.B.Reward == nil {
		return 0
	}
	return math.Abs(*c.A.Reward - *c.B.Reward)
}

func sideOf(s *compare.Side, rows map[schema.ID]Row) *JobSide {
	if s == nil {
		return nil
	}
	out := &JobSide{Trials: s.Trials, Ended: s.Ended, Faults: s.Faults, Reward: s.Reward, Rollouts: []Row{}}
	for _, id := range s.Rollouts[:min(len(s.Rollouts), maxSide)] {
		if row, ok := rows[id]; ok { // the job may have changed meanwhile
			out.Rollouts = append(out.Rollouts, row)
		}
	}
	return out
}
