package trainer

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/turngate/turngate/schema"
)

// Orphans says what a Trainer does with open rollouts of its name and shard that it
// neither submitted nor adopted, such as those of a process that died without a
// State file. It answers none of their calls in either case.
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

// lookForOrphans looks for orphans when this process has the calls of its shard:
// before, they may be another process's. It repeats a look that fails.
func (t *Trainer) lookForOrphans() {
	if t.cfg.AnswerAll {
		return
	}
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := t.findOrphans(t.life)
		if t.life.Err() != nil {
			return
		}
		if err == nil {
			break
		}
		t.cfg.Log.Warn().Err(err).Stringer("again_in", wait).Msg("the open rollouts of other processes are not known")
		if !sleep(t.life, wait) {
			return
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.adopting = false
	t.tellAll()
}

// findOrphans looks for orphans in the queue, which has the requests of all open
// rollouts.
func (t *Trainer) findOrphans(ctx context.Context) error {
	n := 0
	err := t.requests.OpenRequests(ctx, func(r schema.Request, lane int, seq uint64, _ time.Time) error {
		if !t.ofThisShard(&r) || t.has(r.ID) {
			return nil
		}
		n++
		return t.take(ctx, r, lane, seq)
	})
	if err != nil {
		return fmt.Errorf("look for open rollouts of other processes: %w", err)
	}
	if n > 0 {
		t.tellOrphans(n)
	}
	return nil
}

func (t *Trainer) tellOrphans(n int) {
	e := t.cfg.Log.Warn().Int("rollouts", n)
	switch t.cfg.Orphans {
	case CancelOrphans:
		e.Msg("open rollouts that this process did not submit are cancelled")
	case AdoptOrphans:
		e.Msg("open rollouts that this process did not submit are adopted")
	default:
		e.Msg("open rollouts that this process did not submit are left alone, and their calls are not answered: adopt or cancel them")
	}
}

// has reports whether this process has a rollout, or returned its result lately.
func (t *Trainer) has(id schema.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outstanding[id] != nil || t.delivered.has(id)
}

// take does with an orphan as Config.Orphans says.
func (t *Trainer) take(ctx context.Context, r schema.Request, lane int, seq uint64) error {
	switch t.cfg.Orphans {
	case AdoptOrphans:
		return t.adoptAt(ctx, r, lane, seq)
	case CancelOrphans:
		t.mu.Lock()
		t.orphans[r.ID] = cmp.Or(seq, t.orphans[r.ID])
		t.mu.Unlock()
	}
	return nil
}

// foundOrphan handles a call of a rollout that this process does not have. It reports
// whether the call is answered from now on. A gate may send calls of other shards'
// rollouts here: these are no orphans.
func (t *Trainer) foundOrphan(ctx context.Context, id schema.ID) bool {
	log := t.cfg.Log.With().Str("rollout", string(id)).Logger()
	r, err := t.requests.Records.Request(ctx, id)
	if err == nil && !t.ofThisShard(&r) {
		log.Warn().Str("shard", shardOf(&r)).Msg("a call of another shard's rollout is not answered: a process to which gate.routes sends calls needs AnswerAll")
		return false
	}
	if err == nil {
		err = t.take(ctx, r, t.lane(), 0)
	}
	if err != nil {
		log.Warn().Err(err).Msg("an open rollout of another process was not looked at; its worker asks again")
		t.mu.Lock()
		delete(t.rollouts, id)
		t.mu.Unlock()
		return false
	}
	if t.cfg.Orphans != AdoptOrphans && t.cfg.Orphans != CancelOrphans {
		log.Warn().Msg("a call of a rollout that this process did not submit is not answered: adopt or cancel such rollouts")
	}
	return t.cfg.Orphans == AdoptOrphans
}

// shardOf returns the shard of the process that submitted or adopted a rollout.
func shardOf(r *schema.Request) string { return cmp.Or(r.Shard, schema.DefaultShard) }

func (t *Trainer) ofThisShard(r *schema.Request) bool { return shardOf(r) == t.cfg.Shard }
