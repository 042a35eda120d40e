package job

import (
	"cmp"
	"errors"
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

// Check returns an error for patterns that are not valid.
func (c *Choice) Check() error {
	var wrong []error
	check := func(field string, list []string) {
		for _, p := range list {
			if _, err := path.Match(p, ""); err != nil {
				wrong = append(wrong, fmt.Errorf("--%s: %q is not valid: want a pattern such as django__*", field, p))
			}
		}
	}
	check("filter", c.Filter)
	check("exclude", c.Exclude)
	return errors.Join(wrong...)
}

// Of returns the selected tasks in their order. names returns the names of a
// task, in results and of its folder. A pattern may match any of them.
func Of[T any](c Choice, tasks []T, names func(T) []string) []T {
	matches := func(list []string, t T) bool {
		return slices.ContainsFunc(list, func(p string) bool {
			return slices.ContainsFunc(names(t), func(name string) bool {
				ok, _ := path.Match(p, name)
				return ok || p == name
			})
		})
	}
	var out []T
	for _, t := range tasks {
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
		return cmp.Or(slices.Compare(names(out[a]), names(out[b])), cmp.Compare(a, b))
	})
	rand.New(rand.NewPCG(*c.Seed, 0)).Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
	at = at[:c.Limit]
	slices.Sort(at)
	chosen := make([]T, len(at))
	for i, n := range at {
		chosen[i] = out[n]
	}
	return chosen
}
