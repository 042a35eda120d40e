package recorded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// Settings of Follow.
const (
	followEvery  = 500 * time.Millisecond
	trainersWait = 5 * time.Second // between two looks for new trainers
	followPage   = 200
)

// Trainers lists the trainers of a system. An operator has the rights for it.
func (s *System) Trainers(ctx context.Context) ([]string, error) { return s.b.Trainers.List(ctx) }

// Follow calls handle for the rollouts of a trainer, the newest first, and again for
// each one that is new or has another state, until the context ends. With queue it also finds
// the ones that wait in the trainer's queue. report gets an error while the server cannot be
// read, and nil after it; Follow then goes on where it was, so no state is missed. It costs two
// requests every 500 ms.
func (s *System) Follow(ctx context.Context, tid string, queue bool, handle func(*Rollout), report func(error)) {
	f := &follower{s: s, tid: tid, queue: queue, handle: handle, known: map[schema.ID]bool{}}
	failed := false
	for ctx.Err() == nil {
		more, err := f.round(ctx)
		if err != nil && ctx.Err() == nil {
			failed = true
			report(fmt.Errorf("read the rollouts of %s: %w", tid, err))
		} else if failed {
			failed = false
			report(nil)
		}
		if more && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(followEvery):
		}
	}
}

// FollowAll is Follow for all trainers, also for later ones, until they are deleted. It calls
// handle and report concurrently.
func (s *System) FollowAll(ctx context.Context, queue bool, handle func(*Rollout), report func(error)) {
	followed := map[string]context.CancelFunc{}
	var running sync.WaitGroup
	defer running.Wait()
	failed := false
	for ctx.Err() == nil {
		list, err := s.Trainers(ctx)
		if ctx.Err() == nil && (err != nil || failed) {
			failed = err != nil
			report(err)
		}
		for tid, leave := range followed {
			if err == nil && !slices.Contains(list, tid) {
				leave()
				delete(followed, tid)
			}
		}
		for _, tid := range list {
			if followed[tid] != nil {
				continue
			}
			there, leave := context.WithCancel(ctx)
			followed[tid] = leave
			running.Go(func() {
				s.Follow(there, tid, queue, handle, report)
				if ctx.Err() == nil {
					report(nil) // the deleted trainer may have been reported as unreadable
				}
			})
		}
		select {
		case <-ctx.Done():
		case <-time.After(trainersWait):
		}
	}
}

// follower reads the rollouts of one trainer: new states, and older ones page by page.
type follower struct {
	s      *System
	tid    string
	queue  bool
	handle func(*Rollout)

	begun            bool
	states, requests uint64         // sequences up to which all is read
	changed          []schema.State // that are not shown yet
	older            uint64         // sequence below which states are not read yet; 0: none
	queued           []*Rollout     // as changed
	known            map[schema.ID]bool
}

// round reads all that is new, and one page of older rollouts. more is true while
// there are older ones.
func (f *follower) round(ctx context.Context) (more bool, err error) {
	if !f.begun {
		list, err := f.page(ctx, 0)
		if err != nil {
			return false, err
		}
		if len(list) > 0 {
			f.states = list[0].Seq
		}
		f.begun = true
	}
	f.states, err = f.s.b.Records.StatesAfter(ctx, f.tid, f.states, func(s *schema.State) { f.changed = append(f.changed, *s) })
	for len(f.changed) > 0 {
		if err := f.show(ctx, f.changed[0]); err != nil {
			return false, err
		}
		f.changed = f.changed[1:]
	}
	if err != nil {
		return false, err
	}
	if f.queue {
		if err := f.waiting(ctx); err != nil {
			return false, err
		}
	}
	if f.older > 0 {
		if _, err := f.page(ctx, f.older); err != nil {
			return false, err
		}
	}
	return f.older > 0, nil
}

// page shows up to followPage rollouts with states of sequences below before.
func (f *follower) page(ctx context.Context, before uint64) ([]broker.Record[schema.State], error) {
	list, err := f.s.b.Records.States(ctx, f.tid, before, followPage)
	if err != nil {
		return nil, err
	}
	for _, state := range list {
		if before > 0 && f.known[state.Value.ID] { // the first page may be read again, with newer states
			continue
		}
		if err := f.show(ctx, state.Value); err != nil {
			return nil, err
		}
	}
	f.older = 0
	if len(list) == followPage {
		f.older = list[len(list)-1].Seq
	}
	return list, nil
}

func (f *follower) show(ctx context.Context, state schema.State) error {
	r, err := f.s.withState(ctx, state)
	if err != nil {
		return err
	}
	f.known[r.ID] = true
	f.handle(r)
	return nil
}

// waiting shows the rollouts that are new in the queue and have no state.
func (f *follower) waiting(ctx context.Context) (err error) {
	f.requests, err = f.s.b.Records.WaitingAfter(ctx, f.tid, f.requests, func(q *schema.Request, seq uint64) {
		if q.ID.Trainer() == f.tid && !f.known[q.ID] {
			r := f.s.queued(q)
			r.Seq = seq
			f.queued = append(f.queued, r)
		}
	})
	for len(f.queued) > 0 {
		q := f.queued[0]
		var unreadable *broker.UnreadableRecord
		_, serr := f.s.b.Records.State(ctx, q.ID)
		switch {
		case errors.As(serr, &unreadable): // it is no rollout that waits
		case errors.Is(serr, broker.ErrNotFound):
			f.handle(q)
		case serr != nil:
			return serr
		}
		f.queued = f.queued[1:]
	}
	return err
}
