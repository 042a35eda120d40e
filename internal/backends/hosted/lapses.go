package hosted

import (
	"fmt"
	"sync"
)

// lapses are the renewals of a lease that failed since the last one that succeeded.
type lapses struct {
	mu     sync.Mutex
	failed int
	newest error
}

// note notes the outcome of a renewal, and returns the number of failures in a row.
func (l *lapses) note(err error) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest = err; err == nil {
		l.failed = 0
	} else {
		l.failed++
	}
	return l.failed
}

// explain adds the failed renewals to the reason of a machine's end.
func (l *lapses) explain(why error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == 0 {
		return why
	}
	return fmt.Errorf("its lease was not renewed, %d times in a row: %w: %w", l.failed, l.newest, why)
}
