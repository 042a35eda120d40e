package queue

import "time"

// absenceTimer measures how long something was observed without a gap. Time in which
// nothing could be observed, since the server stopped or could not be reached,
// does not count.
type absenceTimer struct{ since, last time.Time }

// look records an observation at the time now, and returns the time since the
// first of the observations that each came within gap of the one before.
func (v *absenceTimer) look(now time.Time, gap time.Duration) time.Duration {
	if v.last.IsZero() || now.Sub(v.last) > gap {
		v.since = now
	}
	v.last = now
	return now.Sub(v.since)
}
