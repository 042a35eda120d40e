package compare

import (
	"math"
	"slices"
)

// Advantages compares the rewards of a group, as trainers do: an advantage is the
// distance from the mean, in standard deviations if they are not 0. A nil reward is left
// out and has no advantage. mean and deviation are nil if all are nil.
func Advantages(rewards []*float64) (mean, deviation *float64, advantages []*float64) {
	advantages = make([]*float64, len(rewards))
	var known []float64
	for _, r := range rewards {
		if r != nil {
			known = append(known, *r)
		}
	}
	if len(known) == 0 {
		return nil, nil, advantages
	}
	n, m, square := float64(len(known)), 0.0, 0.0
	for _, r := range known {
		m += r / n
	}
	for _, r := range known {
		square += (r - m) * (r - m) / n
	}
	d := math.Sqrt(square)
	if slices.Min(known) == slices.Max(known) { // no error of rounding is a deviation
		m, d = known[0], 0
	}
	for i, r := range rewards {
		if r == nil {
			continue
		}
		a := *r - m
		if d > 0 {
			a /= d
		}
		advantages[i] = &a
	}
	return &m, &d, advantages
}
