package trainer

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// forgetAfter is the time without a call after which the state of a rollout
// is dropped, if no result came.
const forgetAfter = 24 * time.Hour

// rollouts has the rollouts that make calls here, with their calls, until their results.
type rollouts struct {
	*base
	gens atomic.Int64
	mu   sync.Mutex
	of   map[schema.ID]*rollout
}

func newRollouts(b *base) *rollouts { return &rollouts{base: b, of: map[schema.ID]*rollout{}} }

// arrival is the place of a call among the calls of its rollout.
type arrival struct {
	rollout  *rollout // the rollout, if the call is its first in this process
	newer    int      // the rollout's attempt, if the call is of an earlier one
	call     *state   // nil: it waits, or is not answered
	fresh    bool     // the call is new
	received []*state // calls with answers that the worker has
	stale    []*state // calls of the attempt before
}

// arrive notes a call. It waits if the state of its rollout is not read, and is dropped if
// this process does not answer the rollout's calls.
func (r *rollouts) arrive(a modelcall.IncomingCall, answers bool) (got arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of[a.Key.Rollout]
	if of == nil {
		of = newRollout()
		r.of[a.Key.Rollout] = of
		got.rollout = of
	}
	switch {
	case !of.ready:
		of.wait(a)
		return got
	case !answers:
		return got
	}
	of.touched = time.Now()
	if a.Key.Attempt < of.attempt {
		got.newer = of.attempt
		return got
	}
	got.stale = of.advance(a.Key.Attempt)
	if got.call = of.of(a)[a.Key.Call]; got.call == nil {
		got.call, got.fresh = r.newState(a), true
		of.of(a)[a.Key.Call] = got.call
	}
	for _, n := range a.Answered {
		if s := of.of(a)[n]; s != nil {
			got.received = append(got.received, s)
		}
	}
	return got
}

// learned notes the attempt of a new rollout, and returns the calls that waited for it. A
// rollout that is over is dropped.
func (r *rollouts) learned(id schema.ID, of *rollout, attempt int, over bool) []modelcall.IncomingCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	of.attempt, of.ready = max(of.attempt, attempt), true
	if over && r.of[id] == of {
		delete(r.of, id)
	}
	waiting := of.waiting
	of.waiting = nil
	return waiting
}

// remove removes a call that its worker gave up, and returns it; nil: there is none.
func (r *rollouts) remove(a modelcall.IncomingCall) *state {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of[a.Key.Rollout]
	if of != nil && !of.ready {
		of.wait(a)
		return nil
	}
	return of.remove(a)
}

// refuse removes the generation that a worker refused, and returns it; nil: there is
// none.
func (r *rollouts) refuse(a modelcall.IncomingCall) *state {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of[a.Key.Rollout]
	if of == nil || of.attempt != a.Key.Attempt {
		return nil
	}
	s := of.of(a)[a.Key.Call]
	if s == nil || s.gen != a.ResumeGen {
		return nil
	}
	of.forget(s)
	return s
}

// change calls f with the rollout of a key under the lock, if its attempt is the key's.
func (r *rollouts) change(k schema.Key, f func(*rollout)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of := r.of[k.Rollout]; of != nil && of.attempt == k.Attempt {
		f(of)
	}
}

func (r *rollouts) has(id schema.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[id] != nil
}

// version returns the policy version of a rollout's newest answer; empty: not known.
func (r *rollouts) version(id schema.ID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if of := r.of[id]; of != nil {
		return of.version
	}
	return ""
}

// older lists the rollouts with an answer of a policy version below a number.
func (r *rollouts) older(version int64) (ids []schema.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, of := range r.of {
		if of.oldest >= 0 && of.oldest < version {
			ids = append(ids, id)
		}
	}
	return ids
}

// calls lists the model calls of all rollouts.
func (r *rollouts) calls() (all []*state) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.of {
		for _, c := range of.calls {
			all = append(all, c)
		}
	}
	return all
}

// awake lists the calls of all kinds. It drops rollouts without a call for forgetAfter.
func (r *rollouts) awake() (all []*state) {
	var idle []schema.ID
	r.mu.Lock()
	for id, of := range r.of {
		if time.Since(of.touched) > forgetAfter {
			idle = append(idle, id)
			continue
		}
		all = append(all, of.allCalls()...)
	}
	r.mu.Unlock()
	for _, id := range idle {
		r.drop(id)
	}
	return all
}

// drop drops a rollout and ends its calls. It reports whether the rollout was there.
func (r *rollouts) drop(id schema.ID) bool {
	r.mu.Lock()
	of := r.of[id]
	delete(r.of, id)
	var all []*state
	if of != nil {
		all = of.allCalls()
	}
	r.mu.Unlock()
	for _, c := range all {
		c.end(errCancelled)
	}
	return of != nil
}

// end drops a rollout that has a result.
func (r *rollouts) end(id schema.ID) {
	if r.drop(id) && r.cfg.Ended != nil {
		r.cfg.Ended(id)
	}
}

func (r *rollouts) newState(a modelcall.IncomingCall) *state {
	s := &state{rollouts: r, key: a.Key, read: make(chan struct{}), gen: r.newGen()}
	s.ctx, s.end = context.WithCancelCause(trace.ContextWithRemoteSpanContext(r.life, a.Trace))
	return s
}

// newGen names a generation.
func (r *rollouts) newGen() string { return r.instance + strconv.FormatInt(r.gens.Add(1), 36) }
