package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// ledger has the rollouts of a day as the trainer and the workers saw them.
type ledger struct {
	mu       sync.Mutex
	rollouts map[schema.ID]*rollout
	results  int
	waits    []float64 // of all rollouts, in seconds
	recent   []float64 // since the last row
	again    []float64 // from the loss of a worker until the next attempt, in seconds
	retried  int       // attempts after the first
}

// rollout is one of a day.
type rollout struct {
	submitted, lost time.Time
	attempts        int
	results         int
}

func newLedger() *ledger { return &ledger{rollouts: map[schema.ID]*rollout{}} }

func (l *ledger) submit(group []schema.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, r := range group {
		l.rollouts[r.ID] = &rollout{submitted: now}
	}
}

// began records an attempt.
func (l *ledger) began(id schema.ID, attempt int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, now := l.rollouts[id], time.Now()
	r.attempts = max(r.attempts, attempt)
	if attempt == 1 {
		wait := now.Sub(r.submitted).Seconds()
		l.waits, l.recent = append(l.waits, wait), append(l.recent, wait)
		return
	}
	l.retried++
	if !r.lost.IsZero() {
		l.again = append(l.again, now.Sub(r.lost).Seconds())
		r.lost = time.Time{}
	}
}

// lost records that the worker of a rollout is gone.
func (l *ledger) lost(id schema.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rollouts[id].lost = time.Now()
}

// ended records a result that the trainer has read.
func (l *ledger) ended(id schema.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.rollouts[id]; r != nil {
		if r.results++; r.results == 1 {
			l.results++
		}
	}
}

// open is the number of rollouts without a result.
func (l *ledger) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.rollouts) - l.results
}

// fill completes a row.
func (l *ledger) fill(r *row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.recent)
	r.ended, r.takeovers = l.results, l.retried
	r.p50, r.p99 = quantile(l.recent, 0.5), quantile(l.recent, 0.99)
	l.recent = nil
}

// report is the outcome of a day.
type report struct {
	text string
	err  error // a rollout has no result, or several
}

func (l *ledger) report() report {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost, double, most := 0, 0, 0
	for _, r := range l.rollouts {
		switch {
		case r.results == 0:
			lost++
		case r.results > 1:
			double++
		}
		most = max(most, r.attempts)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d rollouts, %d results, %d without a result, %d with several\n", len(l.rollouts), l.results, lost, double)
	fmt.Fprintf(&b, "%d attempts after a first one, at most %d for a rollout\n", l.retried, most)
	for _, d := range []struct {
		name   string
		values []float64
	}{{"wait for a worker", l.waits}, {"from the loss of a worker to the next attempt", l.again}} {
		v := slices.Sorted(slices.Values(d.values))
		fmt.Fprintf(&b, "%s: %d, p50 %.2f s, p90 %.2f s, p99 %.2f s, at most %.2f s\n", d.name, len(v), quantile(v, 0.5), quantile(v, 0.9), quantile(v, 0.99), quantile(v, 1))
	}
	out := report{text: b.String()}
	if lost+double > 0 {
		out.err = errors.New("not every rollout has exactly one result")
	}
	return out
}
