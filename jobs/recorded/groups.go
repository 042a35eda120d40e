package recorded

import (
	"cmp"
	"slices"

	"github.com/turngate/turngate/schema"
)

// Group has the rollouts of a group.
type Group struct {
	Trainer  string
	Job      string // the job's folder; empty: none
	Name     string // empty: their requests name none
	Rollouts []*Rollout
}

// Groups puts rollouts into their groups, in the order of the first rollout of each. The
// rollouts of a group are in the order of their indexes.
func Groups(list []*Rollout) []Group {
	var out []Group
	at := map[[3]string]int{}
	for _, r := range list {
		key := [3]string{r.ID.Trainer(), r.About().Group, r.Job}
		i, known := at[key]
		if !known {
			i, at[key] = len(out), len(out)
			out = append(out, Group{Trainer: key[0], Name: key[1], Job: key[2]})
		}
		out[i].Rollouts = append(out[i].Rollouts, r)
	}
	for _, g := range out {
		slices.SortStableFunc(g.Rollouts, func(a, b *Rollout) int {
			return cmp.Or(cmp.Compare(a.About().Index, b.About().Index), cmp.Compare(a.ID, b.ID))
		})
	}
	return out
}

// StatusOpen is the status of a trial in a folder that has no result: it waits, runs, or
// its job was stopped.
const StatusOpen schema.Status = "open"

// About tells which rollout it is.
type About struct {
	Group, Task, Agent string
	Title              string // of the task in lists; it may have a part of the folder's path
	Index              int
	Status             schema.Status
	Attempt            int
	Worker             string
}

// About reads the best source: the result, or else the trial, or else the request.
func (r *Rollout) About() About {
	a := About{Status: StatusOpen}
	if q := r.Asked; q != nil {
		a.Group, a.Task, a.Agent, a.Index = q.Group, q.Task.Name, q.Agent.Name, q.Index
	}
	if t := r.Trial; t != nil {
		a.Group, a.Task, a.Agent, a.Index = t.Group, t.Task, t.Agent, t.Index
	}
	if s := r.State; s != nil {
		a.Status, a.Attempt, a.Worker = s.Status, s.Attempt, s.Worker
	}
	if q := r.Result; q != nil {
		a.Group, a.Task, a.Agent, a.Index = q.Group, q.Task, q.Agent, q.Index
		a.Status, a.Attempt, a.Worker = q.Status, q.Attempt, q.Worker
	}
	a.Title = cmp.Or(r.Title, a.Task)
	return a
}
