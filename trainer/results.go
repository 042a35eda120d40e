package trainer

import (
	"context"
	"errors"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// onHint notes that a result may be there.
func (t *Trainer) onHint(id schema.ID) {
	t.mu.Lock()
	t.hinted[id] = struct{}{}
	t.mu.Unlock()
	wake(t.resulted)
}

// Outstanding counts submitted rollouts whose result was not handed out.
func (t *Trainer) Outstanding() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.outstanding)
}

// NextResult waits for the next result of a rollout that was submitted here.
// Each is handed out once. Results whose hint was lost are found too.
func (t *Trainer) NextResult(ctx context.Context) (schema.Result, error) {
	for {
		if r, ok, err := t.collect(ctx); err != nil || ok {
			return r, err
		}
		select {
		case <-t.resulted:
		case <-ctx.Done():
			return schema.Result{}, context.Cause(ctx)
		case <-t.life.Done():
			return schema.Result{}, context.Cause(t.life)
		}
	}
}

// poll finds results whose hint was lost, or whose read failed.
func (t *Trainer) poll() {
	if err := t.lookForResults(); err != nil {
		t.cfg.Log.Debug().Err(err).Msg("results were not looked for")
	}
	wake(t.resulted)
}

func (t *Trainer) lookForResults() error {
	ctx, cancel := context.WithTimeout(t.life, 30*time.Second)
	defer cancel()
	t.mu.Lock()
	from := t.resultsFrom
	t.mu.Unlock()
	next, err := t.side.ResultsFrom(ctx, from, func(id schema.ID) {
		t.mu.Lock()
		if t.outstanding[id] != nil {
			t.hinted[id] = struct{}{}
		}
		t.mu.Unlock()
	})
	t.mu.Lock()
	t.resultsFrom = max(next, 1)
	t.mu.Unlock()
	return err
}

// collect reads one hinted result.
func (t *Trainer) collect(ctx context.Context) (schema.Result, bool, error) {
	for {
		t.mu.Lock()
		var id schema.ID
		for id = range t.hinted {
			break
		}
		if id == "" {
			t.mu.Unlock()
			return schema.Result{}, false, nil
		}
		delete(t.hinted, id)
		mine := t.outstanding[id] != nil
		more := len(t.hinted) > 0
		t.mu.Unlock()
		if more {
			wake(t.resulted)
		}
		r, err := t.side.Result(ctx, id)
		switch {
		case err == nil:
		case errors.Is(err, broker.ErrNotFound):
			continue
		case ctx.Err() != nil:
			return r, false, context.Cause(ctx)
		default:
			t.cfg.Log.Warn().Err(err).Str("rollout", string(id)).Msg("a result could not be read; it is looked for again")
			t.mu.Lock()
			t.hinted[id] = struct{}{}
			t.mu.Unlock()
			return r, false, nil // at the next tick
		}
		t.end(id)
		if mine {
			return r, true, nil
		}
	}
}

// end drops what is kept of a finished rollout.
func (t *Trainer) end(id schema.ID) {
	t.mu.Lock()
	if t.outstanding[id] != nil {
		delete(t.outstanding, id)
		if err := t.ledger.write(false, entry{ID: id, Done: true}); err != nil {
			t.cfg.Log.Warn().Err(err).Msg("a result was not written down")
		}
	}
	r := t.rollouts[id]
	delete(t.rollouts, id)
	t.mu.Unlock()
	if r != nil {
		for _, c := range r.calls {
			c.end(errCancelled)
		}
	}
}

// Results collects until no submitted rollout is outstanding, calling f with
// each.
func (t *Trainer) Results(ctx context.Context, f func(schema.Result)) error {
	for t.Outstanding() > 0 {
		r, err := t.NextResult(ctx)
		if err != nil {
			return err
		}
		f(r)
	}
	return nil
}
