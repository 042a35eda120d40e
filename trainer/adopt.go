package trainer

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// adoptAtOnce is the number of concurrent look-ups.
const adoptAtOnce = 16

// Adopt makes rollouts outstanding here that another process of this trainer
// may have submitted. It collects the results of ended rollouts, waits for
// rollouts that workers know, and submits the others. A rollout that is still
// in the queue is queued twice and runs once. All get the shard of this process. Calls
// of those that run with another one still go there, and a warning says so.
func (t *Trainer) Adopt(ctx context.Context, requests []schema.Request) error {
	requests = slices.Clone(requests)
	for i := range requests {
		requests[i].Shard = ""
	}
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
	state, err := t.requests.Records.State(ctx, r.ID)
	if errors.Is(err, broker.ErrNotFound) {
		_, err = t.requests.Records.Result(ctx, r.ID)
		state = schema.State{Status: schema.StatusDone}
	}
	if errors.Is(err, broker.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !state.Status.Terminal() {
		if has, err := t.requests.Records.Request(ctx, r.ID); err == nil && !t.ofThisShard(&has) {
			t.cfg.Log.Warn().Str("rollout", string(r.ID)).Str("shard", shardOf(&has)).Msg("an adopted rollout sends its calls to another shard")
		}
	}
	return true, t.keep(&submitted{request: t.mine(r), lane: t.lane(), attempt: state.Attempt}, state.Status)
}

// adoptAt makes a rollout outstanding that another process has put on the queue.
func (t *Trainer) adoptAt(ctx context.Context, r schema.Request, lane int, seq uint64) error {
	state, err := t.requests.Records.State(ctx, r.ID)
	if err != nil && !errors.Is(err, broker.ErrNotFound) {
		return err
	}
	return t.keep(&submitted{request: r, lane: lane, seq: seq, attempt: state.Attempt, at: time.Now()}, state.Status)
}

// keep makes a rollout outstanding, unless it is, or its result was returned here. It is
// in the State file before its result can be.
func (t *Trainer) keep(s *submitted, status schema.Status) error {
	t.keeping.Lock()
	defer t.keeping.Unlock()
	id := s.request.ID
	if !t.has(id) {
		if err := t.ledger.write(true, entry{Submit: &s.request, Lane: s.lane, Seq: s.seq, Attempt: s.attempt}); err != nil {
			return err
		}
		t.mu.Lock()
		if t.outstanding[id] == nil {
			t.addOutstanding(s)
		}
		t.mu.Unlock()
	}
	if status.Terminal() {
		t.onHint(id)
	}
	return nil
}

// lane returns the lane of submitted rollouts.
func (t *Trainer) lane() int {
	if t.cfg.Lane != nil {
		return *t.cfg.Lane
	}
	return 2
}
