package jobs

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
)

// Choice selects the tasks of a job.
type Choice struct {
	Filter  []string // patterns of path.Match; selects tasks that match one of them; empty: all tasks
	Exclude []string // patterns of tasks to leave out
	Limit   int      // the largest number of tasks; 0: no limit
	// Seed selects Limit tasks at random. The same seed and tasks give the same
	// selection. Nil: the first tasks.
	Seed *uint64
}

// CheckPattern returns an error for a pattern that is not valid.
func CheckPattern(p string) error {
	if _, err := path.Match(p, ""); err != nil {
		return fmt.Errorf("%q is not valid: want a pattern such as django__*", p)
	}
	return nil
}

// Of returns the selected tasks in their order. A pattern may match the name of a
// task or of its folder.
func (c Choice) Of(all []Task) []Task {
	matches := func(list []string, t Task) bool {
		return slices.ContainsFunc(list, func(p string) bool {
			return slices.ContainsFunc(t.names(), func(name string) bool {
				ok, _ := path.Match(p, name)
				return ok || p == name
			})
		})
	}
	var out []Task
	for _, t := range all {
		if (len(c.Filter) == 0 || matches(c.Filter, t)) && !matches(c.Exclude, t) {
			out = append(out, t)
		}
	}
	if c.Limit <= 0 || len(out) <= c.Limit {
		return out
	}
	if c.Seed == nil {
		return out[:c.Limit]
	}
	// Sort by name: the selection must not depend on the order of the arguments.
	at := make([]int, len(out))
	for i := range at {
		at[i] = i
	}
	slices.SortFunc(at, func(a, b int) int {
		return cmp.Or(slices.Compare(out[a].names(), out[b].names()), cmp.Compare(a, b))
	})
	rand.New(rand.NewPCG(*c.Seed, 0)).Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
	at = at[:c.Limit]
	slices.Sort(at)
	chosen := make([]Task, len(at))
	for i, n := range at {
		chosen[i] = out[n]
	}
	return chosen
}
