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
	// ReplaceOrphans is the default. When this process submits its first rollouts, it ends
	// the rollouts of processes without a State file, because their results are lost. It
	// leaves the others. A process that submits the ids of an earlier one again needs another
	// value.
	ReplaceOrphans Orphans = "replace"
	LeaveOrphans   Orphans = "leave"  // they wait for a process that has them, and end without one
	CancelOrphans  Orphans = "cancel" // end them
	AdoptOrphans   Orphans = "adopt"  // answer their calls and return their results as if this process had submitted them
)

func checkOrphans(o Orphans) error {
	switch o {
	case ReplaceOrphans, LeaveOrphans, CancelOrphans, AdoptOrphans:
		return nil
	default:
		return &schema.InvalidError{Field: "orphans", Value: string(o), Want: fmt.Sprintf("%q, %q, %q or %q", ReplaceOrphans, LeaveOrphans, CancelOrphans, AdoptOrphans)}
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
	if o.cfg.Orphans == ReplaceOrphans {
		select {
		case <-o.outstanding.working:
		case <-o.life.Done():
			return
		}
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
	found := map[Orphans]int{}
	err := o.requests.OpenRequests(ctx, func(r schema.Request, lane int, seq uint64, _ time.Time) error {
		if !o.ofThisShard(&r) || o.outstanding.had(r.ID) {
			return nil
		}
		found[o.rule(&r)]++
		return o.take(ctx, r, lane, seq)
	})
	if err != nil {
		return fmt.Errorf("look for open rollouts of other processes: %w", err)
	}
	o.log(found)
	o.cancels.repeat() // at once: they have slots
	return nil
}

// rule is the treatment of one orphan.
func (o *orphans) rule(r *schema.Request) Orphans {
	switch {
	case o.cfg.Orphans != ReplaceOrphans:
		return o.cfg.Orphans
	case r.Process != "":
		return CancelOrphans
	default:
		return LeaveOrphans
	}
}

// log logs the numbers of orphans by their treatment.
func (o *orphans) log(found map[Orphans]int) {
	for rule, text := range map[Orphans]string{
		CancelOrphans: "open rollouts of processes that are gone are ended, and their slots are free then; Config.Orphans has other rules",
		AdoptOrphans:  "open rollouts that this process did not submit are adopted",
		LeaveOrphans:  "open rollouts that this process did not submit are left alone, and their calls are not answered, so that they may hold slots: start the process that has their state file, adopt or cancel them with Config.Orphans, or use turngate rollout cancel",
	} {
		if n := found[rule]; n > 0 {
			o.cfg.Log.Warn().Int("rollouts", n).Str("shard", o.cfg.Shard).Msg(text)
		}
	}
}

// take does with an orphan of the queue as its rule says.
func (o *orphans) take(ctx context.Context, r schema.Request, lane int, seq uint64) error {
	switch o.rule(&r) {
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
// rollouts here: these are no orphans. With ReplaceOrphans a rollout that came after the
// look is another process's.
func (o *orphans) found(ctx context.Context, id schema.ID) (answered bool, err error) {
	log := o.cfg.Log.With().Str("rollout", string(id)).Logger()
	r, err := o.requests.Records.Request(ctx, id)
	if err != nil {
		return false, err
	}
	switch {
	case !o.ofThisShard(&r):
		log.Warn().Str("shard", shardOf(&r)).Msg("a call of another shard's rollout is not answered: a process to which gate.routes sends calls needs AnswerAll")
		return false, nil
	case o.cfg.Orphans == LeaveOrphans || o.cfg.Orphans == ReplaceOrphans:
		if !o.cancels.ending(id) {
			log.Warn().Msg("a call of a rollout that this process did not submit is not answered: adopt or cancel such rollouts")
		}
		return false, nil
	default:
		return o.cfg.Orphans == AdoptOrphans, o.take(ctx, r, o.lane(), 0)
	}
}
