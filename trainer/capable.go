package trainer

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/turngate/turngate/schema"
)

// fleetWithin bounds the question which workers are there.
const fleetWithin = time.Second

// checkAgents refuses requests for an agent that no live worker has, and none has had:
// a worker that restarts is away for a while. Without an answer it refuses none.
func (t *Trainer) checkAgents(ctx context.Context, requests []schema.Request) error {
	op, cancel := context.WithTimeout(ctx, fleetWithin)
	defer cancel()
	fleet, err := t.requests.Fleet(op)
	if err != nil {
		t.cfg.Log.Debug().Err(err).Msg("not known which agents are there")
		return nil
	}
	var there []string
	for _, w := range fleet.Workers {
		if len(w.Offer.Agents) == 0 { // it does not say what it offers
			return nil
		}
		there = append(there, w.Offer.Agents...)
	}
	if len(there) == 0 {
		return nil
	}
	slices.Sort(there)
	there = slices.Compact(there)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range there {
		t.agents[name] = true
	}
	for i := range requests {
		if name := requests[i].Agent.Name; name != "" && !t.agents[name] {
			return &schema.InvalidError{Field: "agent.name", Value: name, Want: "want an agent of a worker that is there: " + strings.Join(there, ", ") + "; turngate agent install adds one to a worker's host"}
		}
	}
	return nil
}

// tellStuck logs that no worker that is there can run some rollouts, once for each
// reason.
func (t *Trainer) tellStuck() {
	q := &queueReporter{t: t}
	waiting := q.waiting()
	if len(waiting) == 0 {
		return
	}
	op, cancel := context.WithTimeout(t.life, 5*time.Second)
	defer cancel()
	fleet, err := t.requests.Fleet(op)
	if err != nil {
		return
	}
	for _, s := range waiting {
		why := fleet.Unable(&s.request)
		if why == "" || t.stuck[why] || !q.isQueued(op, s.request.ID) {
			continue
		}
		if len(t.stuck) >= maxQueued {
			clear(t.stuck)
		}
		t.stuck[why] = true
		t.cfg.Log.Warn().Str("rollout", string(s.request.ID)).Msg("a rollout waits: " + why)
	}
}
