package recorded

import (
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// maxWaiting is the number of requests of a queue among which a rollout is looked
// for.
const maxWaiting = 2000

// ErrNotFound means that there is no such rollout.
var ErrNotFound = broker.ErrNotFound

// MayPass reports whether an error is of a server that does not answer at this moment.
func MayPass(err error) bool {
	return errors.Is(err, broker.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// System is a running system, which stores the rollouts of its trainers.
type System struct{ b *broker.Broker }

// Dial connects to the system of a server as a trainer.
func Dial(ctx context.Context, url, creds, tid string, log zerolog.Logger) (*System, error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return nil, err
	}
	b, err := broker.Dial(ctx, broker.Config{URL: url, Creds: creds, Name: "trainer " + tid, Inbox: broker.InboxFor(broker.RoleTrainer, tid), Log: log})
	if err != nil {
		return nil, err
	}
	return On(b), nil
}

// On returns the system of an open connection.
func On(b *broker.Broker) *System { return &System{b} }

// Close closes the connection.
func (s *System) Close() { s.b.Close() }

// Rollout returns a rollout. With queue it also finds a rollout that waits among the first
// requests of its trainer's queue. The error wraps ErrNotFound if the system does not know
// it.
func (s *System) Rollout(ctx context.Context, id schema.ID, queue bool) (*Rollout, error) {
	state, err := s.b.Records.State(ctx, id)
	if errors.Is(err, broker.ErrNotFound) && queue {
		return s.waiting(ctx, id, err)
	}
	if err != nil {
		return nil, err
	}
	r, err := s.withState(ctx, state)
	if err == nil {
		err = r.Unread
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// withState returns the rollout of a state, with its result, or else with its request.
// An unreadable one is left out.
func (s *System) withState(ctx context.Context, state schema.State) (*Rollout, error) {
	r := &Rollout{ID: state.ID, State: &state, from: s.b}
	var unreadable *broker.UnreadableRecord
	result, err := s.b.Records.Result(ctx, state.ID)
	switch {
	case err == nil:
		r.Result = &result
		return r, nil
	case errors.As(err, &unreadable):
		r.Unread = err
	case !errors.Is(err, broker.ErrNotFound):
		return nil, err
	}
	asked, err := s.b.Records.Request(ctx, state.ID)
	switch {
	case err == nil:
		r.Asked = &asked
	case errors.As(err, &unreadable):
		r.Unread = errors.Join(r.Unread, err)
	case !errors.Is(err, broker.ErrNotFound):
		return nil, err
	}
	return r, nil
}

// waiting returns a rollout that is in its trainer's queue, or else the error.
func (s *System) waiting(ctx context.Context, id schema.ID, notFound error) (*Rollout, error) {
	var r *Rollout
	_, err := s.b.Records.Waiting(ctx, id.Trainer(), 0, maxWaiting, func(q *schema.Request) bool {
		if q.ID == id {
			r = s.queued(q)
		}
		return r == nil
	})
	if r == nil {
		return nil, errors.Join(notFound, err)
	}
	return r, nil
}

// queued returns a rollout that no worker has taken yet.
func (s *System) queued(q *schema.Request) *Rollout {
	return &Rollout{ID: q.ID, Asked: q, State: &schema.State{V: schema.Version, ID: q.ID, Trainer: q.ID.Trainer(), Status: schema.StatusQueued}, from: s.b}
}

// Rollouts returns rollouts of a trainer: with queue up to limit requests that wait in its
// queue, the oldest first, and then up to limit rollouts with a state, the newest first. Next is the sequence below which the states of older rollouts are, for the
// next call; 0: there are none. A call with a sequence returns no waiting requests.
func (s *System) Rollouts(ctx context.Context, tid string, before uint64, limit int, queue bool) (list []*Rollout, next uint64, err error) {
	states, err := s.b.Records.States(ctx, tid, before, limit+1)
	if broker.IsMissing(err) { // the first worker makes the trainer's streams
		missing, merr := s.b.Streams.Missing(ctx, subjects.Records(tid))
		if missing || merr != nil {
			return nil, 0, merr
		}
	}
	if err != nil {
		return nil, 0, err
	}
	if len(states) > limit {
		states = states[:limit]
		next = states[limit-1].Seq
	}
	if before == 0 && queue {
		known := map[schema.ID]bool{}
		for _, state := range states {
			known[state.Value.ID] = true
		}
		if list, _, err = s.unclaimed(ctx, tid, 0, limit, known); err != nil {
			return nil, 0, err
		}
	}
	for _, state := range states {
		r, err := s.withState(ctx, state.Value)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, r)
	}
	return list, next, nil
}

// Unclaimed returns the rollouts that no worker has taken yet, among up to limit messages of
// their trainer's queue with a sequence above after, the oldest first. Next is the after of the
// next call; 0: it has read all.
func (s *System) Unclaimed(ctx context.Context, tid string, after uint64, limit int) (list []*Rollout, next uint64, err error) {
	return s.unclaimed(ctx, tid, after, limit, map[schema.ID]bool{})
}

// unclaimed is Unclaimed without the known rollouts.
func (s *System) unclaimed(ctx context.Context, tid string, after uint64, limit int, known map[schema.ID]bool) (list []*Rollout, next uint64, err error) {
	var all []*schema.Request
	next, err = s.b.Records.Waiting(ctx, tid, after, limit, func(q *schema.Request) bool { all = append(all, q); return true })
	if err != nil {
		return nil, 0, err
	}
	for _, q := range all {
		if known[q.ID] || q.ID.Trainer() != tid {
			continue
		}
		var unreadable *broker.UnreadableRecord
		_, err := s.b.Records.State(ctx, q.ID)
		if errors.Is(err, broker.ErrNotFound) {
			list = append(list, s.queued(q))
			known[q.ID] = true
		} else if err != nil && !errors.As(err, &unreadable) {
			return nil, 0, err
		}
	}
	return list, next, nil
}

// OfSystem reports whether the rollout is one of a running system.
func (r *Rollout) OfSystem() bool { return r.from != nil }

// Request reads the request of a rollout of a running system, and its bundle if it
// has one.
func (r *Rollout) Request(ctx context.Context) (*schema.Request, []byte, error) {
	q, err := r.from.Records.Request(ctx, r.ID)
	if err != nil {
		return nil, nil, err
	}
	if q.Task.Bundle == "" {
		return &q, nil, nil
	}
	bundle, err := r.from.Objects.Bundle(ctx, r.ID.Trainer(), q.Task.Bundle)
	if err != nil {
		return nil, nil, fmt.Errorf("the task of %s: %w", r.ID, err)
	}
	return &q, bundle, nil
}
