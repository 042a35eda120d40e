package trainer

import (
	"context"
	"time"
)

// obstacles logs the reasons why no live worker can run some rollouts, each once.
type obstacles struct {
	*base
	backlog *backlog
	logged  map[string]bool // reasons; used by look alone
}

// look looks at the rollouts that wait for a worker.
func (o *obstacles) look() {
	waiting := o.backlog.waiting()
	if len(waiting) == 0 {
		return
	}
	op, cancel := context.WithTimeout(o.life, 5*time.Second)
	defer cancel()
	fleet, err := o.requests.Fleet(op)
	if err != nil {
		return
	}
	for _, w := range waiting {
		needs := w.request.Needs()
		why := fleet.Unable(&needs)
		if why == "" || o.logged[why] || !o.backlog.isQueued(op, w.request.ID) {
			continue
		}
		if len(o.logged) >= maxQueued {
			clear(o.logged)
		}
		o.logged[why] = true
		o.cfg.Log.Warn().Str("rollout", string(w.request.ID)).Msg("a rollout waits: " + why)
	}
}
