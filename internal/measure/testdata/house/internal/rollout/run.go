// Package rollout has two files with a circle.
package rollout

import "example.com/house/schema"

type base struct{}

// Name is found in run, too.
func (base) Name() string { return "run" }

type run struct {
	base
	result *schema.Result
}

func (r *run) all() {
	r.step()
	r.step()
	r.end()
}

func (r *run) note(n int) { r.result.Usage.Tokens += n }
