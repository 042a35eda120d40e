// Package schema has a result.
package schema

// Result has fields.
type Result struct {
	Reward float64
	Usage  struct{ Tokens int }
	Calls  map[string]int
}

// Good is a method.
func (r *Result) Good() bool { return r.Reward > 0 }

// Of makes a result.
func Of(reward float64) Result { return Result{Reward: reward} }
