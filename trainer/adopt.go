package trainer

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// adoptAtOnce is the number of concurrent look-ups.
const adoptAtOnce = 16

// Adopt makes rollouts outstanding here that another process of this trainer
// may have submitted. It collects the results of ended rollouts, waits for
// rollouts that workers know, and submits the others. A rollout that is still
// in the queue is queued twice and runs once.
func (t *Trainer) Adopt(ctx context.Context, requests []schema.Request) error {
	if _, err := t.batches(requests); err != nil {
		return err
	}
	there := make([]bool, len(requests))
	all, op := errgroup.WithContext(ctx)
	all.SetLimit(adoptAtOnce)
	for i := range requests {
		all.Go(func() (err error) {
			there[i], err = t.adopt(op, requests[i])
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	var fresh []schema.Request
	for i, r := range requests {
		if !there[i] {
			fresh = append(fresh, r)
		}
	}
	return t.Submit(ctx, fresh)
}

// adopt reports whether the broker knows a rollout.
func (t *Trainer) adopt(ctx context.Context, r schema.Request) (bool, error) {
	state, err := t.requests.State(ctx, r.ID)
	if errors.Is(err, broker.ErrNotFound) {
		_, err = t.requests.Result(ctx, r.ID)
		state = schema.State{Status: schema.StatusDone}
	}
	if errors.Is(err, broker.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	lane := t.lane()
	r.Trainer = t.cfg.Name
	t.mu.Lock()
	if t.outstanding[r.ID] == nil {
		t.addOutstanding(&submitted{request: r, lane: lane, attempt: state.Attempt})
	}
	t.mu.Unlock()
	if err := t.ledger.write(true, entry{Submit: &r, Lane: lane, Attempt: state.Attempt}); err != nil {
		return false, err
	}
	if state.Status.Terminal() {
		t.onHint(r.ID)
	}
	return true, nil
}

// lane returns the lane of submitted rollouts.
func (t *Trainer) lane() int {
	if t.cfg.Lane != nil {
		return *t.cfg.Lane
	}
	return 2
}
