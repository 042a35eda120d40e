package broker

import "time"

// vigil is for how long something has been looked at without a break: what
// nobody could see, since the server stood still or could not be reached, does
// not count.
type vigil struct{ since, last time.Time }

// look notes that a look was answered now, and gives for how long each came
// within gap of the one before.
func (v *vigil) look(now time.Time, gap time.Duration) time.Duration {
	if v.last.IsZero() || now.Sub(v.last) > gap {
		v.since = now
	}
	v.last = now
	return now.Sub(v.since)
}
