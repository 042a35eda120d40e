package trainer

import (
	"context"
	"errors"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// results returns the results of outstanding rollouts, each once.
type results struct {
	*base
	outstanding *outstanding
	hints       *hints
	rollouts    *rollouts
	endings     *endings
	cancels     *cancels
}

// each calls f with each wanted result until no wanted rollout is outstanding.
func (r *results) each(ctx context.Context, w Wanted, f func(schema.Result)) error {
	count := newTally(w.Enough, w.Treatments)
	for {
		res, ok, err := r.next(ctx, w.Group, false)
		if err != nil || !ok {
			return err
		}
		if count.add(&res) {
			if err := r.cancels.cancelThose(func(q *schema.Request) bool { return q.Group == res.Group }, "the group has enough results"); err != nil {
				r.cfg.Log.Debug().Err(err).Msg("a cancel was not sent; it is repeated")
			}
		}
		if r.outstanding.count(res.Group) == 0 {
			delete(count.usable, res.Group)
		}
		f(res)
	}
}

// next waits for the next result of a group, or of all rollouts if its name is
// empty. ok is false if none of these rollouts is outstanding and none of their
// requests waits for a slot; endless waits for one.
func (r *results) next(ctx context.Context, group string, endless bool) (res schema.Result, ok bool, err error) {
	for {
		news := r.hints.coming(group) // before the look at the state
		id, hinted := r.hints.take(group)
		if !hinted && !endless && !r.expected(group) {
			return res, false, nil
		}
		if hinted {
			res, err = r.requests.Records.Result(ctx, id)
			switch {
			case err == nil:
				mine, err := r.end(id)
				if err != nil || mine {
					return res, mine, err
				}
				continue // it was delivered
			case errors.Is(err, broker.ErrNotFound): // its hint comes again
				r.outstanding.unhint(id)
				continue
			case ctx.Err() != nil: // the next caller gets it
				r.endings.hint(id)
				return res, false, context.Cause(ctx)
			}
			r.cfg.Log.Warn().Err(err).Str("rollout", string(id)).Msg("a result could not be read; it is looked for again")
			r.outstanding.change(id, func(s *submitted) { r.hints.postpone(s.request.Group, id) })
			if !errors.Is(err, broker.ErrUnreachable) {
				continue // others may be read
			}
		}
		select {
		case <-news:
		case <-ctx.Done():
			return res, false, context.Cause(ctx)
		case <-r.life.Done():
			return res, false, context.Cause(r.life)
		}
	}
}

// expected reports whether a group, or with an empty name any, has outstanding
// rollouts or requests that wait for a slot, or may get orphans.
func (r *results) expected(group string) bool {
	// In this order: a rollout is outstanding before its request waits no more, and
	// before the look for orphans ends.
	return r.outstanding.adopting.Load() || r.outstanding.slots.waits(group) || r.outstanding.count(group) > 0
}

// end drops the state of a finished rollout, and reports whether it was outstanding. After
// Close it fails, since the next process with the State file returns the result.
func (r *results) end(id schema.ID) (mine bool, err error) {
	if !r.enter() {
		return false, context.Cause(r.life)
	}
	mine = r.outstanding.deliver(id)
	r.bg.Done()
	r.rollouts.end(id)
	return mine, nil
}
