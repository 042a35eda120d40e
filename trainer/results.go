package trainer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// onHints handles a message on the trainer's results subject.
func (t *Trainer) onHints(h schema.Hint) {
	if h.Fault != nil {
		t.cfg.Log.Error().Str("rollout", string(h.ID)).Msg("a request in this trainer's name has no result: " + h.Fault.Error())
		return
	}
	t.onHint(h.ID)
}

// onHint notes that a rollout may have a result. A process that only answers
// calls needs it too: the result ends the rollout's calls.
func (t *Trainer) onHint(id schema.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recent.add(id)
	delete(t.orphans, id)
	t.mayHaveEnded(id)
}

// mayHaveEnded has the result of a rollout looked for. The caller holds the lock.
func (t *Trainer) mayHaveEnded(id schema.ID) {
	switch {
	case t.outstanding[id] != nil:
		t.hinted[id] = struct{}{}
		t.setOver(t.outstanding[id], true)
		t.tell(t.outstanding[id].request.Group)
	case t.rollouts[id] != nil:
		t.over[id] = struct{}{}
		wake(t.overReady)
	}
}

// dropOver drops the calls of rollouts that another process submitted and that
// have a result.
func (t *Trainer) dropOver() {
	for {
		select {
		case <-t.life.Done():
			return
		case <-t.overReady:
		}
		t.mu.Lock()
		ids := slices.Collect(maps.Keys(t.over))
		clear(t.over)
		t.mu.Unlock()
		for _, id := range ids {
			ctx, cancel := context.WithTimeout(t.life, 10*time.Second)
			_, err := t.requests.Records.Result(ctx, id)
			cancel()
			switch {
			case err == nil:
				t.end(id)
			case errors.Is(err, broker.ErrNotFound): // the hint of its result comes again
			default: // the next poll looks again
				t.cfg.Log.Debug().Err(err).Str("rollout", string(id)).Msg("a result could not be read; it is looked for again")
				t.mu.Lock()
				t.over[id] = struct{}{}
				t.mu.Unlock()
			}
		}
	}
}

// Outstanding returns the number of submitted rollouts without a delivered
// result.
func (t *Trainer) Outstanding() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.outstanding)
}

// NextResult waits for the next result of a rollout that was submitted here,
// and returns each result once. It also finds results after a lost hint.
func (t *Trainer) NextResult(ctx context.Context) (schema.Result, error) {
	r, _, err := t.nextOf(ctx, "", true)
	return r, err
}

// poll looks for results after a lost hint or a failed read.
func (t *Trainer) poll() {
	if err := t.lookForResults(); err != nil {
		t.cfg.Log.Debug().Err(err).Msg("results were not looked for")
	} else if err := t.lookAtStore(); err != nil {
		t.cfg.Log.Debug().Err(err).Msg("it is not known whether the server has lost its store")
	}
	t.mu.Lock()
	for id := range t.unread {
		t.hinted[id] = struct{}{}
	}
	clear(t.unread)
	t.tellAll()
	t.mu.Unlock()
	wake(t.overReady)
}

// lookAtStore submits the outstanding rollouts again if the server has lost them with its
// store.
func (t *Trainer) lookAtStore() error {
	ctx, cancel := context.WithTimeout(t.life, 10*time.Second)
	defer cancel()
	store, err := t.requests.Results.Store(ctx)
	if err != nil || store == t.store {
		return err
	}
	t.cfg.Log.Warn().Msg("the server has lost its store; requests that it does not have are submitted again")
	if err := t.auditOlder(0); err != nil {
		return err
	}
	t.store = store
	return nil
}

func (t *Trainer) lookForResults() error {
	ctx, cancel := context.WithTimeout(t.life, 30*time.Second)
	defer cancel()
	t.mu.Lock()
	from := t.resultsFrom
	t.mu.Unlock()
	next, err := t.requests.Results.From(ctx, from, t.onHint)
	t.mu.Lock()
	t.resultsFrom = max(next, 1)
	t.mu.Unlock()
	return err
}

// nextOf waits for the next result of a group, or of all rollouts if its name is
// empty. ok is false if none of these rollouts is outstanding and none of their
// requests waits for a slot; endless waits for one.
func (t *Trainer) nextOf(ctx context.Context, group string, endless bool) (r schema.Result, ok bool, err error) {
	for {
		t.mu.Lock()
		id := t.hintedOf(group)
		if id == "" && !endless && !t.expected(group) {
			t.mu.Unlock()
			return r, false, nil
		}
		delete(t.hinted, id)
		news := t.newsOf(group)
		t.mu.Unlock()
		if id != "" {
			r, err = t.requests.Records.Result(ctx, id)
			switch {
			case err == nil && t.end(id):
				return r, true, nil
			case err == nil: // it was delivered
				continue
			case errors.Is(err, broker.ErrNotFound): // its hint comes again
				t.mu.Lock()
				if s := t.outstanding[id]; s != nil {
					t.setOver(s, false)
				}
				t.mu.Unlock()
				continue
			case ctx.Err() != nil: // it is for the next caller
				t.onHint(id)
				return r, false, context.Cause(ctx)
			}
			t.cfg.Log.Warn().Err(err).Str("rollout", string(id)).Msg("a result could not be read; it is looked for again")
			t.mu.Lock()
			if t.outstanding[id] != nil {
				t.unread[id] = struct{}{}
			}
			t.mu.Unlock()
			if !errors.Is(err, broker.ErrUnreachable) {
				continue // others may be read
			}
		}
		select {
		case <-news:
		case <-ctx.Done():
			return r, false, context.Cause(ctx)
		case <-t.life.Done():
			return r, false, context.Cause(t.life)
		}
	}
}

// end drops the state of a finished rollout, and reports whether it was
// outstanding.
func (t *Trainer) end(id schema.ID) bool {
	t.mu.Lock()
	mine := t.dropOutstanding(id)
	if mine {
		t.delivered.add(id)
		if err := t.ledger.write(false, entry{ID: id, Done: true}); err != nil {
			t.cfg.Log.Warn().Err(err).Msg("a result was not written down")
		}
	}
	had := t.rollouts[id] != nil
	t.drop(id)
	t.mu.Unlock()
	if had && t.cfg.Ended != nil {
		t.cfg.Ended(id)
	}
	return mine
}

// Results calls f with each result until no submitted rollout is outstanding.
func (t *Trainer) Results(ctx context.Context, f func(schema.Result)) error {
	return t.ResultsOf(ctx, Wanted{}, f)
}
