package trainer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// fleetWithin bounds the query for the live workers.
const fleetWithin = time.Second

// agents has the agents that workers have, or have had.
type agents struct {
	*base
	mu   sync.Mutex
	seen map[string]bool // by name
}

// check refuses requests for an agent that no live worker has, and none has had:
// a worker that restarts is away for a while. Without an answer it refuses none.
func (a *agents) check(ctx context.Context, requests []schema.Request) error {
	op, cancel := context.WithTimeout(ctx, fleetWithin)
	defer cancel()
	fleet, err := a.requests.Fleet(op)
	if err != nil {
		a.cfg.Log.Debug().Err(err).Msg("not known which agents are there")
		return nil
	}
	var there []string
	for _, w := range fleet.Workers {
		if len(w.Offer.Agents) == 0 { // it names no agents
			return nil
		}
		there = append(there, w.Offer.Agents...)
	}
	if len(there) == 0 {
		return nil
	}
	slices.Sort(there)
	there = slices.Compact(there)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range there {
		a.seen[name] = true
	}
	for i := range requests {
		if name := requests[i].Agent.Name; name != "" && !a.seen[name] {
			return &schema.InvalidError{Field: "agent.name", Value: name, Want: "want an agent of a worker that is there: " + strings.Join(there, ", ") + "; turngate agent install adds one to a worker's host"}
		}
	}
	return nil
}
