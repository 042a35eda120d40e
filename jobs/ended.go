package jobs

import (
	"cmp"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Ended is a rollout that ended outside of any job.
type Ended struct {
	Variant
	Result *schema.Result
	Digest string // sha256 of the task's bundle; empty: not known
}

// AddEnded adds trials for rollouts that ended outside of any job; Put stores their
// results. The folders of their tasks are not known: a trial has the task's name
// instead.
func (p *Plan) AddEnded(list []Ended) {
	groups, sizes := map[string]string{}, map[string]int{}
	for _, e := range list {
		r := e.Result
		key := cmp.Or(r.Group, r.Task) + " " + e.Label()
		if groups[key] == "" { // a plan's groups are ULIDs
			groups[key] = NewGroup()
		}
		if !slices.Contains(p.Variants, e.Variant) {
			p.Variants = append(p.Variants, e.Variant)
		}
		sizes[key]++
		p.Attempts = max(p.Attempts, sizes[key])
		p.Trials = append(p.Trials, Trial{
			Name: trialName(r.Task), Rollout: r.ID, Variant: e.Variant, Group: groups[key], Index: r.Index, Task: r.Task, Dir: r.Task,
			Digest: cmp.Or(e.Digest, strings.Repeat("0", 64)), // Harbor wants a digest
		})
	}
}
