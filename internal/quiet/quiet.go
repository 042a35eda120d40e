// Package quiet bounds the log lines about a failure that repeats.
package quiet

import (
	"strings"
	"sync"
	"time"
)

// Lines lets the first line about a failure through at once, and then one after each of
// growing intervals. It is safe for concurrent use.
type Lines struct {
	mu  sync.Mutex
	all map[string]*repetition // by the text of the failure, without digits
}

// repetition is a failure that was logged.
type repetition struct {
	every   time.Duration // until it is logged again
	logged  time.Time
	last    time.Time
	skipped int // since logged
}

const (
	firstInterval = 10 * time.Second
	mostInterval  = 10 * time.Minute
	// maxKnown bounds the number of failures that are known.
	maxKnown = 256
)

// Speak notes a failure. It reports whether to log it, and how many were not logged
// since the last time. Texts that differ in digits alone, for example in a port, are one
// failure.
func (q *Lines) Speak(text string, now time.Time) (skipped int, speak bool) {
	text = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.all[text]
	switch {
	case r == nil || now.Sub(r.last) > mostInterval:
		if q.all == nil || len(q.all) >= maxKnown {
			q.all = map[string]*repetition{}
		}
		q.all[text] = &repetition{every: firstInterval, logged: now, last: now}
		return 0, true
	case now.Sub(r.logged) < r.every:
		r.last = now
		r.skipped++
		return 0, false
	}
	skipped = r.skipped
	r.every, r.logged, r.last, r.skipped = min(2*r.every, mostInterval), now, now, 0
	return skipped, true
}
