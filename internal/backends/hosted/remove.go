package hosted

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// closeTime bounds the removal of a machine.
const closeTime = 30 * time.Second

// limit bounds a removal.
func (b *Backend) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, closeTime, fmt.Errorf("%s has not removed it within %s; it ends by itself", b.settings.Service, closeTime))
}

// remove removes a machine, with several tries until the context ends, and reports whether
// it was there.
func (b *Backend) remove(ctx context.Context, id string) (there bool, err error) {
	wait := backoff{}
	for {
		err = b.provider.Remove(ctx, id)
		if err == nil || IsGone(err) {
			return err == nil, nil
		}
		if !ForNow(err) {
			return false, fmt.Errorf("remove the sandbox %s: %w", id, err)
		}
		if Sleep(ctx, wait.next(err)) != nil {
			return false, fmt.Errorf("remove the sandbox %s: %w", id, errors.Join(context.Cause(ctx), err))
		}
	}
}

// Forget removes the machine of a request that got no answer: find returns the ids. A machine
// that comes up later ends by itself.
func Forget(ctx context.Context, p Provider, find func(context.Context) (ids []string, err error)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	_ = Poll(ctx, func() (bool, error) { // the machine that is left ends by itself
		ids, err := find(ctx)
		for _, id := range ids {
			if rerr := p.Remove(ctx, id); rerr != nil && !IsGone(rerr) {
				err = errors.Join(err, rerr)
			}
		}
		return err == nil, err
	})
}
