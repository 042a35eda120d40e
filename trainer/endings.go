package trainer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// endings notes hints that rollouts have results. The results of outstanding rollouts are
// returned; the calls of rollouts that other processes submitted are dropped.
type endings struct {
	*base
	outstanding *outstanding
	rollouts    *rollouts
	cancels     *cancels
	ready       chan struct{} // capacity 1: over has rollouts

	mu     sync.Mutex
	recent recent                 // rollouts with a hint: they may be met after it
	over   map[schema.ID]struct{} // rollouts of other processes that may have a result
}

func newEndings(b *base, o *outstanding, r *rollouts, c *cancels) *endings {
	return &endings{base: b, outstanding: o, rollouts: r, cancels: c, ready: make(chan struct{}, 1), over: map[schema.ID]struct{}{}}
}

// onHint handles a message on the trainer's results subject.
func (e *endings) onHint(h schema.Hint) {
	if h.Fault != nil {
		e.cfg.Log.Error().Str("rollout", string(h.ID)).Msg("a request in this trainer's name has no result: " + h.Fault.Error())
		return
	}
	e.hint(h.ID)
}

// hint notes that a rollout may have a result. A process that only answers
// calls needs it too: the result ends the rollout's calls.
func (e *endings) hint(id schema.ID) {
	e.mu.Lock()
	e.recent.add(id)
	e.mu.Unlock()
	e.cancels.over(id)
	e.note(id)
}

// met looks again for the result of a rollout that made its first call or became outstanding
// after the hint.
func (e *endings) met(id schema.ID) {
	e.mu.Lock()
	hinted := e.recent.has(id)
	e.mu.Unlock()
	if hinted {
		e.note(id)
	}
}

// note has the result of a rollout looked for.
func (e *endings) note(id schema.ID) {
	if e.outstanding.hint(id) || !e.rollouts.has(id) {
		return
	}
	e.mu.Lock()
	e.over[id] = struct{}{}
	e.mu.Unlock()
	wake(e.ready)
}

// run drops the calls of rollouts that another process submitted and that
// have a result.
func (e *endings) run() {
	for {
		select {
		case <-e.life.Done():
			return
		case <-e.ready:
		}
		e.mu.Lock()
		ids := slices.Collect(maps.Keys(e.over))
		clear(e.over)
		e.mu.Unlock()
		for _, id := range ids {
			ctx, cancel := context.WithTimeout(e.life, 10*time.Second)
			_, err := e.requests.Records.Result(ctx, id)
			cancel()
			switch {
			case err == nil:
				e.rollouts.end(id)
			case errors.Is(err, broker.ErrNotFound): // the hint of its result comes again
			default: // the next poll looks again
				e.cfg.Log.Debug().Err(err).Str("rollout", string(id)).Msg("a result could not be read; it is looked for again")
				e.mu.Lock()
				e.over[id] = struct{}{}
				e.mu.Unlock()
			}
		}
	}
}

// lookAtRestored looks for results of rollouts that ended while no process was
// there, to free their slots.
func (e *endings) lookAtRestored(ids []schema.ID) {
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(e.life, 10*time.Second)
		_, err := e.requests.Records.Result(ctx, id)
		cancel()
		switch {
		case err == nil:
			e.hint(id)
		case !errors.Is(err, broker.ErrNotFound): // the audit looks again
			return
		}
	}
}
