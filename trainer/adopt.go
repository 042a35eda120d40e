package trainer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// adoptAtOnce is the number of concurrent look-ups.
const adoptAtOnce = 16

// adopter makes rollouts outstanding here that another process submitted.
type adopter struct {
	*base
	outstanding *outstanding
	endings     *endings
	submitter   *submitter
	keeping     sync.Mutex // rollouts are adopted one after the other
}

// adopt adopts the rollouts that the broker knows, and submits the others.
func (a *adopter) adopt(ctx context.Context, requests []schema.Request) error {
	requests = slices.Clone(requests)
	for i := range requests {
		requests[i].Shard = ""
	}
	if _, err := a.submitter.batches(requests); err != nil {
		return err
	}
	there := make([]bool, len(requests))
	all, op := errgroup.WithContext(ctx)
	all.SetLimit(adoptAtOnce)
	for i := range requests {
		all.Go(func() (err error) {
			there[i], err = a.adoptOne(op, requests[i])
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	var fresh []schema.Request
	for i, r := range requests {
		if !there[i] {
			fresh = append(fresh, r)
		}
	}
	if len(fresh) < len(requests) {
		a.outstanding.works()
	}
	return a.submitter.submit(ctx, fresh)
}

// adoptOne makes a rollout outstanding that the broker knows. It reports whether it does.
func (a *adopter) adoptOne(ctx context.Context, r schema.Request) (bool, error) {
	state, err := a.requests.Records.State(ctx, r.ID)
	if errors.Is(err, broker.ErrNotFound) {
		_, err = a.requests.Records.Result(ctx, r.ID)
		state = schema.State{Status: schema.StatusDone}
	}
	if errors.Is(err, broker.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !state.Status.Terminal() {
		if has, err := a.requests.Records.Request(ctx, r.ID); err == nil && !a.ofThisShard(&has) {
			a.cfg.Log.Warn().Str("rollout", string(r.ID)).Str("shard", shardOf(&has)).Msg("an adopted rollout sends its calls to another shard")
		}
	}
	return true, a.keep(&submitted{request: a.mine(r), lane: a.lane(), attempt: state.Attempt}, state.Status)
}

// adoptAt makes a rollout outstanding that another process has put on the queue.
func (a *adopter) adoptAt(ctx context.Context, r schema.Request, lane int, seq uint64) error {
	state, err := a.requests.Records.State(ctx, r.ID)
	if err != nil && !errors.Is(err, broker.ErrNotFound) {
		return err
	}
	return a.keep(&submitted{request: r, lane: lane, seq: seq, attempt: state.Attempt, at: time.Now()}, state.Status)
}

// keep makes a rollout outstanding, unless it is, or its result was returned here. It is
// in the State file before its result can be.
func (a *adopter) keep(s *submitted, status schema.Status) error {
	a.keeping.Lock()
	defer a.keeping.Unlock()
	id := s.request.ID
	if !a.outstanding.had(id) {
		if err := a.outstanding.ledger.write(true, entry{Submit: &s.request, Lane: s.lane, Seq: s.seq, Attempt: s.attempt}); err != nil {
			return err
		}
		a.outstanding.add(s)
		a.endings.met(id) // its result may have arrived since its state was read
	}
	if status.Terminal() {
		a.endings.hint(id)
	}
	return nil
}
