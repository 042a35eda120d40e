package queue

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

// offered has the agents and the kinds of sandboxes that workers offer, or have offered.
type offered struct {
	mu   sync.Mutex
	seen map[string]map[string]bool // names, by the field of a request
}

// CheckOffered refuses requests for an agent or a kind of sandbox that no live worker has, and
// none has had: a worker that restarts is away for a while. Without an answer of a worker it
// refuses none. at is the index of the refused request; the error is a *schema.InvalidError.
func (t *Trainer) CheckOffered(ctx context.Context, requests []schema.Request) (at int, err error) {
	op, cancel := context.WithTimeout(ctx, fleetWithin)
	defer cancel()
	fleet, err := t.Fleet(op)
	if err != nil {
		t.broker.Log().Debug().Err(err).Msg("not known what workers offer")
		return 0, nil
	}
	return t.offered.check(&fleet, requests)
}

func (o *offered) check(fleet *schema.Fleet, requests []schema.Request) (at int, err error) {
	for _, kind := range []struct {
		field, want, remedy string
		of                  func(*schema.Offer) []string
		asked               func(*schema.Needs) []string
	}{
		{
			"agent.name", "an agent", "turngate agent install adds one to a worker's host",
			func(o *schema.Offer) []string { return o.Agents }, func(n *schema.Needs) []string { return []string{n.Agent} },
		},
		{
			"sandbox.backend", "a sandbox", "--sandboxes of a worker names its kinds",
			func(o *schema.Offer) []string { return o.Backends }, func(n *schema.Needs) []string { return n.Backends },
		},
	} {
		there := o.add(kind.field, fleet, kind.of)
		if there == nil {
			continue
		}
		for i := range requests {
			needs := requests[i].Needs()
			for _, name := range kind.asked(&needs) {
				if name != "" && !o.has(kind.field, name) {
					return i, &schema.InvalidError{Field: kind.field, Value: name, Want: "want " + kind.want + " of a worker that is there: " + strings.Join(there, ", ") + "; " + kind.remedy}
				}
			}
		}
	}
	return 0, nil
}

// add adds what the workers offer, and returns it; nil: a worker does not say it, or none is
// there.
func (o *offered) add(field string, f *schema.Fleet, of func(*schema.Offer) []string) (there []string) {
	for i := range f.Workers {
		names := of(&f.Workers[i].Offer)
		if len(names) == 0 {
			return nil
		}
		there = append(there, names...)
	}
	slices.Sort(there)
	there = slices.Compact(there)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[field] == nil {
		o.seen[field] = map[string]bool{}
	}
	for _, name := range there {
		o.seen[field][name] = true
	}
	return there
}

func (o *offered) has(field, name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[field][name]
}
