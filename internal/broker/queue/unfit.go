package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
)

// unfit records since when no live worker can run a request. The queue delivers a
// request to one worker only now and then, and others may run it in between, so
// this worker reads the list of live workers by itself (see seek).
type unfit struct {
	mu      sync.Mutex
	wanting map[schema.ID]*wanting
	looks   absenceTimer
}

type wanting struct {
	req   *schema.Request // without its task
	first time.Time
}

const maxUnfit = 10_000

// since returns how long no live worker could run a request, as far as this
// worker has seen. Call it just after reading the list of live workers.
func (u *unfit) since(req *schema.Request, t broker.Timing) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	seen := u.looks.look(now, 4*lookEvery(t))
	x := u.wanting[req.ID]
	if x == nil {
		if len(u.wanting) >= maxUnfit { // too many: start again for all of them
			clear(u.wanting)
		}
		asks := *req
		asks.Task = schema.Task{}
		x = &wanting{&asks, now}
		u.wanting[req.ID] = x
	}
	return min(now.Sub(x.first), seen)
}

func (u *unfit) forget(id schema.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.wanting, id)
}

func (u *unfit) empty() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.wanting) == 0
}

// review forgets requests that a live worker can run now, and requests so old
// that another worker must have taken them off the queue.
func (u *unfit) review(all []schema.Presence, t broker.Timing) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.looks.look(now, 4*lookEvery(t))
	for id, x := range u.wanting {
		if able(all, x.req) || now.Sub(x.first) > 2*t.NoCapable {
			delete(u.wanting, id)
		}
	}
}

// able reports whether a live worker can run a request, now or when its backends work
// again.
func able(all []schema.Presence, r *schema.Request) bool {
	return slices.ContainsFunc(all, func(p schema.Presence) bool { return !p.Draining && p.Offer.AllWork().Lacks(r) == nil })
}

// lookEvery is the interval at which seek reads the presence of every worker.
func lookEvery(t broker.Timing) time.Duration { return max(t.NoCapable/10, t.Unfit) }

// seek reads the list of live workers regularly while there are requests that no
// worker can run.
func (p *parking) seek(ctx context.Context) {
	for wire.Pause(ctx, lookEvery(p.timing)) == nil {
		if p.unfit.empty() {
			continue
		}
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		all, err := p.fleet.list(op)
		cancel()
		if err != nil {
			p.log.Debug().Err(err).Msg("not known who is there")
			continue
		}
		p.unfit.review(all, p.timing)
	}
}
