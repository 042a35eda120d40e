package trainer

import (
	"context"
	"fmt"
	"time"

	"github.com/turngate/turngate/schema"
)

// Orphans is a Trainer's treatment of open rollouts of its name and shard that it neither
// submitted nor adopted, such as rollouts of a process that died without a State file. It
// answers none of their calls in either case.
type Orphans string

// Values of Orphans.
const (
	LeaveOrphans  Orphans = "leave"  // the default: they wait for a process that has them, and end without one
	CancelOrphans Orphans = "cancel" // end them
	AdoptOrphans  Orphans = "adopt"  // answer their calls and return their results as if this process had submitted them
)

func checkOrphans(o Orphans) error {
	switch o {
	case "", LeaveOrphans, CancelOrphans, AdoptOrphans:
		return nil
	default:
		return &schema.InvalidError{Field: "orphans", Value: string(o), Want: fmt.Sprintf("%q, %q or %q", LeaveOrphans, CancelOrphans, AdoptOrphans)}
	}
}

// orphans looks for the orphans of this process's shard, and does with them as
// Config.Orphans says.
type orphans struct {
	*base
	outstanding *outstanding
	adopter     *adopter
	cancels     *cancels
}

// look looks for orphans when this process has the calls of its shard:
// before, they may be another process's. It repeats a look that fails.
func (o *orphans) look() {
	if o.cfg.AnswerAll {
		return
	}
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := o.find(o.life)
		if o.life.Err() != nil {
			return
		}
		if err == nil {
			break
		}
		o.cfg.Log.Warn().Err(err).Stringer("again_in", wait).Msg("the open rollouts of other processes are not known")
		if !sleep(o.life, wait) {
			return
		}
	}
	o.outstanding.adopting.Store(false)
	o.outstanding.hints.retry()
}

// find looks for orphans in the queue, which has the requests of all open
// rollouts.
func (o *orphans) find(ctx context.Context) error {
	n := 0
	err := o.requests.OpenRequests(ctx, func(r schema.Request, lane int, seq uint64, _ time.Time) error {
		if !o.ofThisShard(&r) || o.outstanding.had(r.ID) {
			return nil
		}
		n++
		return o.take(ctx, r, lane, seq)
	})
	if err != nil {
		return fmt.Errorf("look for open rollouts of other processes: %w", err)
	}
	if n > 0 {
		o.log(n)
	}
	return nil
}

// log logs the number of orphans.
func (o *orphans) log(n int) {
	e := o.cfg.Log.Warn().Int("rollouts", n)
	switch o.cfg.Orphans {
	case CancelOrphans:
		e.Msg("open rollouts that this process did not submit are cancelled")
	case AdoptOrphans:
		e.Msg("open rollouts that this process did not submit are adopted")
	default:
		e.Msg("open rollouts that this process did not submit are left alone, and their calls are not answered: adopt or cancel them")
	}
}

// take does with an orphan as Config.Orphans says.
func (o *orphans) take(ctx context.Context, r schema.Request, lane int, seq uint64) error {
	switch o.cfg.Orphans {
	case AdoptOrphans:
		return o.adopter.adoptAt(ctx, r, lane, seq)
	case CancelOrphans:
		if !o.outstanding.had(r.ID) { // it may be submitted or adopted by now
			o.cancels.orphan(r.ID, seq)
		}
	}
	return nil
}

// found handles a call of a rollout that this process does not have. It reports
// whether the call is answered from now on. A gate may send calls of other shards'
// rollouts here: these are no orphans.
func (o *orphans) found(ctx context.Context, id schema.ID) (answered bool, err error) {
	log := o.cfg.Log.With().Str("rollout", string(id)).Logger()
	r, err := o.requests.Records.Request(ctx, id)
	if err == nil && !o.ofThisShard(&r) {
		log.Warn().Str("shard", shardOf(&r)).Msg("a call of another shard's rollout is not answered: a process to which gate.routes sends calls needs AnswerAll")
		return false, nil
	}
	if err == nil {
		err = o.take(ctx, r, o.lane(), 0)
	}
	if err != nil {
		return false, err
	}
	if o.cfg.Orphans != AdoptOrphans && o.cfg.Orphans != CancelOrphans {
		log.Warn().Msg("a call of a rollout that this process did not submit is not answered: adopt or cancel such rollouts")
	}
	return o.cfg.Orphans == AdoptOrphans, nil
}
