package trainer

import (
	"context"
	"sync"

	"github.com/turngate/turngate/schema"
)

// Runner runs single rollouts for callers that wait for them. It takes all
// results of its trainer, so no other code may call NextResult.
type Runner struct {
	t *Trainer

	mu      sync.Mutex
	waiting map[schema.ID]chan schema.Result
}

// NewRunner returns a runner. Its Serve must run while Run is used.
func NewRunner(t *Trainer) *Runner { return &Runner{t: t, waiting: map[schema.ID]chan schema.Result{}} }

// Serve passes results to the callers of Run until the context ends.
func (r *Runner) Serve(ctx context.Context) error {
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

// Run submits one request and waits for its result. If the context ends first,
// the rollout is cancelled.
func (r *Runner) Run(ctx context.Context, q schema.Request) (schema.Result, error) {
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
