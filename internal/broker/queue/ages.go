package queue

import (
	"context"
	"sync"
	"time"
)

const (
	// oldestWithin bounds the time to read the oldest request of a lane.
	oldestWithin = 2 * time.Second
	// agesWithin bounds the time to read the oldest requests of all lanes.
	agesWithin = 4 * time.Second
	// unansweredFor is the time for which no age is asked for after the server did not answer.
	unansweredFor = 3 * time.Minute
)

// ages reads the ages of queued requests. The server does not answer a credential that may not
// read them, such as the ages of a removed trainer.
type ages struct {
	mu     sync.Mutex
	silent map[string]time.Time // by trainer: when the server did not answer
}

// read calls oldest, unless the server did not answer for another lane of the trainer a
// short time ago. unknown is true without an answer.
func (a *ages) read(ctx context.Context, trainer string, oldest func(context.Context) (time.Time, error)) (stored time.Time, unknown bool) {
	a.mu.Lock()
	at, silent := a.silent[trainer]
	if silent && time.Since(at) >= unansweredFor {
		delete(a.silent, trainer)
		silent = false
	}
	a.mu.Unlock()
	if silent || ctx.Err() != nil {
		return time.Time{}, true
	}
	op, cancel := context.WithTimeout(ctx, oldestWithin)
	defer cancel()
	stored, err := oldest(op)
	if err != nil && op.Err() != nil && ctx.Err() == nil { // the time of this lane alone is over
		a.mu.Lock()
		a.silent[trainer] = time.Now()
		a.mu.Unlock()
	}
	return stored, err != nil
}
