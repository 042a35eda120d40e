package e2b

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// pace tells when the next sandbox may be asked for.
type pace struct {
	every time.Duration // between two requests; 0: none

	mu   sync.Mutex
	next time.Time // no request before it
}

func newPace(perMinute int) *pace {
	p := &pace{}
	if perMinute > 0 {
		p.every = time.Minute / time.Duration(perMinute)
	}
	return p
}

// turn waits until a request may be sent.
func (p *pace) turn(ctx context.Context) error {
	for {
		wait := p.take(time.Now())
		if wait <= 0 {
			return context.Cause(ctx)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// take takes the turn and returns 0, or returns the time until the next one.
func (p *pace) take(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait := p.next.Sub(now); wait > 0 {
		return wait
	}
	p.next = now.Add(p.every)
	return 0
}

// hold lets no request be sent before a time.
func (p *pace) hold(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until.After(p.next) {
		p.next = until
	}
}

// backoff gives the waits between tries. The zero value is ready for use.
type backoff struct{ tries int }

// Bounds of a wait without a hint of E2B.
const (
	leastWait = time.Second
	mostWait  = 30 * time.Second
)

// next returns the wait that E2B asks for in err, or else a random one, which grows.
func (b *backoff) next(err error) time.Duration {
	var no *refusedError
	if errors.As(err, &no) && no.after > 0 {
		return no.after
	}
	most := min(leastWait<<min(b.tries, 10), mostWait)
	b.tries++
	return most/2 + rand.N(most/2)
}

// sleep waits, or returns the cause of the context's end.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
