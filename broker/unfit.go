package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// unfit remembers since when nobody offers what a request asks. A request comes
// by a worker only now and then, and may run elsewhere meanwhile, so the worker
// looks by itself who is there.
type unfit struct {
	mu      sync.Mutex
	wanting map[schema.ID]*wanting
	looks   vigil
}

type wanting struct {
	req   *schema.Request // without its task
	first time.Time
}

const maxUnfit = 10_000

// since is for how long nobody has offered what a request asks, as far as this
// worker could see. It has just looked.
func (u *unfit) since(req *schema.Request, t Timing) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	seen := u.looks.look(now, 4*t.lookEvery())
	x := u.wanting[req.ID]
	if x == nil {
		if len(u.wanting) >= maxUnfit { // beyond it the clock begins anew
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

// review forgets what somebody offers, and what others have settled by now.
func (u *unfit) review(all []schema.Presence, t Timing) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.looks.look(now, 4*t.lookEvery())
	for id, x := range u.wanting {
		able := slices.ContainsFunc(all, func(p schema.Presence) bool { return !p.Draining && p.Offer.Lacks(x.req) == nil })
		if able || now.Sub(x.first) > 2*t.NoCapable {
			delete(u.wanting, id)
		}
	}
}

// lookEvery is between two such looks. Each reads what every worker tells of itself.
func (t Timing) lookEvery() time.Duration { return max(t.NoCapable/10, t.Unfit) }

// seek looks who is there for as long as something is wanted that nobody
// offers.
func (w *WorkerSide) seek(ctx context.Context) {
	for pause(ctx, w.timing.lookEvery()) == nil {
		if w.unfit.empty() {
			continue
		}
		op, cancel := context.WithTimeout(ctx, opTimeout)
		all, err := w.fleet.list(op, w)
		cancel()
		if err != nil {
			w.log.Debug().Err(err).Msg("not known who is there")
			continue
		}
		w.unfit.review(all, w.timing)
	}
}
