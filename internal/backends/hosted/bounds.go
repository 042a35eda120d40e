package hosted

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
)

// Bounds limit the sandboxes of one process at a service.
type Bounds struct {
	service string
	places  chan struct{} // has a place for each sandbox that may be there at once; nil: no bound
	every   time.Duration // between two requests for a sandbox; 0: none

	mu   sync.Mutex
	next time.Time // no request before it
}

// CheckBounds returns an error if one of the bounds is negative.
func CheckBounds(atOnce, perMinute int) error {
	if atOnce < 0 || perMinute < 0 {
		return errors.New("the number of sandboxes is negative: want 0 or more")
	}
	return nil
}

// NewBounds returns the bounds for a service with this name: of the sandboxes at once, and of
// new ones in a minute. 0 means no bound.
func NewBounds(service string, atOnce, perMinute int) *Bounds {
	b := &Bounds{service: service}
	if atOnce > 0 {
		b.places = make(chan struct{}, atOnce)
	}
	if perMinute > 0 {
		b.every = time.Minute / time.Duration(perMinute)
	}
	return b
}

// Enter waits for a place for a sandbox. leave gives it back.
func (b *Bounds) Enter(ctx context.Context, log func(string)) (leave func(), err error) {
	if b.places == nil {
		return func() {}, context.Cause(ctx)
	}
	select {
	case b.places <- struct{}{}:
		return func() { <-b.places }, nil
	default:
	}
	log(fmt.Sprintf("all %d sandboxes of %s are in use; this one waits", cap(b.places), b.service))
	return far.Enter(ctx, b.places)
}

// Make calls create when it is its turn, and again after each refusal with the status 429.
// Meanwhile the other calls of Make wait, too. At the end of ctx it returns the last refusal.
func (b *Bounds) Make(ctx context.Context, log func(string), create func() error) (err error) {
	wait := backoff{}
	for {
		if end := b.turn(ctx); end != nil {
			return errors.Join(end, err)
		}
		err = create()
		if !HasStatus(err, http.StatusTooManyRequests) {
			return err
		}
		pause := wait.next(err)
		log(fmt.Sprintf("%s; another try in %s", err, pause.Round(time.Second)))
		b.hold(time.Now().Add(pause))
		if until, ok := ctx.Deadline(); ok && time.Until(until) < pause {
			return fmt.Errorf("no time is left for another try: %w", err)
		}
	}
}

// turn waits until a request may be sent.
func (b *Bounds) turn(ctx context.Context) error {
	for {
		wait := b.take(time.Now())
		if wait <= 0 {
			return context.Cause(ctx)
		}
		if err := Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// take takes the turn and returns 0, or returns the time until the next one.
func (b *Bounds) take(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait := b.next.Sub(now); wait > 0 {
		return wait
	}
	b.next = now.Add(b.every)
	return 0
}

// hold lets no request be sent before a time.
func (b *Bounds) hold(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until.After(b.next) {
		b.next = until
	}
}

// backoff gives the waits between tries. The zero value is ready for use.
type backoff struct{ tries int }

// Bounds of a wait without a hint of the service.
const (
	leastWait = time.Second
	mostWait  = 30 * time.Second
)

// next returns the wait that the service asks for in err, or else a random one, which grows.
func (b *backoff) next(err error) time.Duration {
	var no *RefusedError
	if errors.As(err, &no) && no.After > 0 {
		return no.After
	}
	most := min(leastWait<<min(b.tries, 10), mostWait)
	b.tries++
	return most/2 + rand.N(most/2)
}
