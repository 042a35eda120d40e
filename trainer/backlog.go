package trainer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

const (
	// queuedLong is the time in the queue after which a wait is reported.
	queuedLong = 2 * time.Second
	// queueEvery is the interval of checks of the queue.
	queueEvery = 2 * time.Second
	// maxQueued bounds the rollouts with a reported wait, the oldest first.
	maxQueued = 64
)

// backlog finds the rollouts that no worker has taken.
type backlog struct {
	*base
	outstanding *outstanding
}

// waiting lists the oldest rollouts that no worker has taken, as far as this
// process knows.
func (b *backlog) waiting() []submitted {
	var all []submitted
	b.outstanding.each(func(s *submitted) {
		if s.attempt == 0 && !s.at.IsZero() && time.Since(s.at) > queuedLong {
			all = append(all, *s)
		}
	})
	slices.SortFunc(all, func(a, b submitted) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.request.ID, b.request.ID))
	})
	return all[:min(len(all), maxQueued)]
}

// isQueued reads whether a rollout is still queued, because the events of its
// start may be lost.
func (b *backlog) isQueued(ctx context.Context, id schema.ID) bool {
	state, err := b.requests.Records.State(ctx, id)
	if errors.Is(err, broker.ErrNotFound) {
		return true
	}
	if err == nil {
		b.outstanding.sawAttempt(id, state.Attempt)
	}
	return err == nil && state.Status == schema.StatusQueued
}
