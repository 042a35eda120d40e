package hosted

import (
	"context"
	"errors"
	"time"
)

// Pauses of Poll.
const (
	firstPause = time.Second
	mostPause  = 10 * time.Second
)

// Poll calls f, with pauses that grow, until it reports true, and returns its error then. An
// error without it is waited for if it is one for now, see ForNow.
func Poll(ctx context.Context, f func() (done bool, err error)) error {
	for pause := firstPause; ; pause = min(pause*3/2, mostPause) {
		done, err := f()
		if done || err != nil && !ForNow(err) {
			return err
		}
		wait := pause
		if no := (*RefusedError)(nil); errors.As(err, &no) {
			wait = max(wait, no.After)
		}
		if serr := Sleep(ctx, wait); serr != nil {
			return errors.Join(serr, err)
		}
	}
}

// Sleep waits, or returns the cause of the context's end.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CauseOf returns the cause of the context's end, or err if it has not ended.
func CauseOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Bounds of the time for which a service keeps a sandbox without a sign of its worker.
const (
	leastKept   = time.Minute
	defaultKept = 5 * time.Minute
	mostKept    = time.Hour
)

// Kept returns this time for sandboxes.Spec.Lost.
func Kept(lost time.Duration) time.Duration {
	if lost == 0 {
		return defaultKept
	}
	return min(max(lost, leastKept), mostKept)
}
