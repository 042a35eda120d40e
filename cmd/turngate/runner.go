package main

import (
	"context"
	"sync"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// runner runs single rollouts for callers that wait for them. It takes all
// results of its trainer, so no other code may call NextResult.
type runner struct {
	t *trainer.Trainer

	mu      sync.Mutex
	waiting map[schema.ID]chan schema.Result
}

// newRunner returns a runner. Its serve must run while run is used.
func newRunner(t *trainer.Trainer) *runner {
	return &runner{t: t, waiting: map[schema.ID]chan schema.Result{}}
}

// serve passes results to the callers of run until the context ends.
func (r *runner) serve(ctx context.Context) error {
	for {
		res, err := r.t.NextResult(ctx)
		if err != nil {
			return err
		}
		r.mu.Lock()
		ch := r.waiting[res.ID]
		delete(r.waiting, res.ID)
		r.mu.Unlock()
		if ch != nil {
			ch <- res
		}
	}
}

// run submits one request and waits for its result. If the context ends first,
// the rollout is cancelled.
func (r *runner) run(ctx context.Context, q schema.Request) (schema.Result, error) {
	ch := make(chan schema.Result, 1)
	r.mu.Lock()
	r.waiting[q.ID] = ch
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.waiting, q.ID)
		r.mu.Unlock()
	}()
	if err := r.t.Submit(ctx, []schema.Request{q}); err != nil {
		return schema.Result{}, err
	}
	select {
	case res := <-ch:
		return res, nil
	case <-ctx.Done():
		_ = r.t.Cancel([]schema.ID{q.ID}, "not waited for any more") // its worker ends it in any case
		return schema.Result{}, context.Cause(ctx)
	}
}
