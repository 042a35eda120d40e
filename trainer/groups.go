package trainer

import "github.com/turngate/turngate/schema"

// Wanted selects results, and says how many of a group are enough.
type Wanted struct {
	Group string // results of this group only; empty: all results
	// Enough is the number of usable results of a group after which its other
	// rollouts are cancelled. Each group counts by itself. 0: none is cancelled.
	Enough int
	// Treatments decides which results are usable: the ones with the treatment
	// Train. Nil: DefaultTreatments.
	Treatments Treatments
}

// tally counts the usable results of groups.
type tally struct {
	enough     int
	treatments Treatments
	usable     map[string]int
}

func newTally(enough int, treatments Treatments) *tally {
	if treatments == nil {
		treatments = DefaultTreatments()
	}
	return &tally{enough, treatments, map[string]int{}}
}

// add counts a result, and reports whether it is usable and its group has enough.
func (c *tally) add(r *schema.Result) bool {
	if c.enough <= 0 || r.Group == "" || c.treatments.Of(r) != Train {
		return false
	}
	c.usable[r.Group]++
	return c.usable[r.Group] >= c.enough
}
