package hosted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/schema"
)

// Bounds of a sweep.
const (
	sweepTime = time.Minute
	sweepers  = 16 // removals at once
)

// Sweep implements sandboxes.Backend. The machines that the service does not remove in time end
// by themselves.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	if err := b.provider.Usable(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sweepTime, fmt.Errorf("%s has not removed all within %s; the rest ends by itself", b.settings.Service, sweepTime))
	defer cancel()
	list, err := b.provider.List(ctx, owner)
	var left []string
	for _, m := range list {
		if !keep(m.Rollout) {
			left = append(left, m.ID)
		}
	}
	n, rerr := b.removeAll(ctx, left)
	return n, errors.Join(err, rerr)
}

// removeAll removes machines and returns how many existed. The error has the reason of the
// first one that is left.
func (b *Backend) removeAll(ctx context.Context, ids []string) (int, error) {
	var removed atomic.Int64
	var all sync.WaitGroup
	places := make(chan struct{}, sweepers)
	problems := make([]error, len(ids))
	for i, id := range ids {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			limited, cancel := b.limit(ctx)
			defer cancel()
			there, err := b.remove(limited, id)
			problems[i] = err
			if there {
				removed.Add(1)
			}
		})
	}
	all.Wait()
	var first error
	left := 0
	for _, err := range problems {
		if err != nil {
			first = cmp.Or(first, err)
			left++
		}
	}
	if left > 0 {
		first = fmt.Errorf("%d of %d sandboxes are left: %w", left, len(ids), first)
	}
	return int(removed.Load()), first
}
