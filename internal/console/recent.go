package console

import (
	"context"
	"sync"
	"time"
)

// readWithin bounds the time to read a value from a running system.
const readWithin = 8 * time.Second

// errorKept is the longest time for which an error takes the place of a value.
const errorKept = time.Second

// recent keeps a value for a short time, so that many browsers cost as much as one.
type recent[T any] struct {
	read func(context.Context) (T, error)
	keep time.Duration

	mu    sync.Mutex // held while the value is read
	value T
	err   error
	at    time.Time // zero: not read yet
}

// get reads the value again if it is too old. It waits for a read of another request.
func (r *recent[T]) get(ctx context.Context) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := r.keep
	if r.err != nil {
		keep = min(keep, errorKept)
	}
	if r.at.IsZero() || time.Since(r.at) >= keep {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin) // other requests wait for it
		defer cancel()
		r.value, r.err = r.read(ctx)
		r.at = time.Now()
	}
	return r.value, r.err
}

// forget lets the next get read the value.
func (r *recent[T]) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = time.Time{}
}
