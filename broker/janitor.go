package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// janitor is what the one worker that tidies up knows: every rollout that has
// not ended. It reads only the states that were written since its last round.
type janitor struct {
	w      *WorkerSide
	next   uint64 // sequence of the first state that was not read yet
	open   map[schema.ID]*watched
	purged time.Time // when finished rollouts were last looked for
}

type watched struct {
	state   schema.State
	seq     uint64
	orphan  time.Time // since when it has no lease; zero: it has one
	missing int       // rounds in which its worker's presence did not list it
	again   uint64    // sequence of the request that was published again
}

// tidy does the janitor's rounds while this worker is the one.
func (w *WorkerSide) tidy(ctx context.Context) {
	var j *janitor
	for pause(ctx, w.timing.Tidy) == nil {
		op, cancel := context.WithTimeout(ctx, opTimeout)
		mine, err := w.elect(op)
		cancel()
		if err != nil || !mine {
			j = nil
			continue
		}
		if j == nil {
			j = &janitor{w: w, open: map[schema.ID]*watched{}}
		}
		if err := j.round(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn().Err(err).Msg("the janitor's round did not end")
		}
	}
}

func (j *janitor) round(ctx context.Context) error {
	if err := j.read(ctx); err != nil {
		return err
	}
	all, err := j.w.Workers(ctx)
	if err != nil {
		return err
	}
	present := map[string]*schema.Presence{}
	for i := range all {
		present[all[i].Worker+"."+all[i].Instance] = &all[i]
	}
	leases := map[string]leaseStanding{}
	for id, o := range j.open {
		if err := j.look(ctx, id, o, present, leases); err != nil {
			return err
		}
	}
	if r := j.w.cfg.Retention; r > 0 && time.Since(j.purged) > min(r/4, 10*time.Minute) {
		if err := j.purge(ctx, r); err != nil {
			return err
		}
		j.purged = time.Now()
	}
	return nil
}

// read brings what is known up to date.
func (j *janitor) read(ctx context.Context) error {
	s, err := j.w.js.Stream(ctx, subjects.StreamRollouts)
	if err != nil {
		return fmt.Errorf("open stream %s: %w", subjects.StreamRollouts, err)
	}
	if s.CachedInfo().State.LastSeq+1 < j.next { // the store was wiped
		j.next, j.open = 0, map[schema.ID]*watched{}
	}
	return j.w.newest(ctx, subjects.StreamRollouts, subjects.StateFilter, j.next, func(m jetstream.Msg, meta *jetstream.MsgMetadata) bool {
		j.next = meta.Sequence.Stream + 1
		id, ok := subjects.RolloutID(m.Subject())
		if !ok {
			return true
		}
		var s schema.State
		if err := schema.Decode(m.Data(), &s); err != nil {
			j.w.log.Warn().Err(err).Str("rollout", string(id)).Msg("a state cannot be read")
			return true
		}
		if s.Status.Terminal() {
			delete(j.open, id)
			return true
		}
		o := j.open[id]
		if o == nil {
			o = &watched{}
			j.open[id] = o
		}
		*o = watched{state: s, seq: meta.Sequence.Stream, again: o.again}
		return true
	})
}

// look does what a rollout needs.
func (j *janitor) look(ctx context.Context, id schema.ID, o *watched, present map[string]*schema.Presence, leases map[string]leaseStanding) error {
	if o.state.Owned() {
		owner := o.state.Worker + "." + o.state.Instance
		standing, known := leases[owner]
		if !known {
			var err error
			if standing, err = j.w.leaseOf(ctx, o.state.Worker, o.state.Instance); err != nil {
				return err
			}
			leases[owner] = standing
		}
		if standing == leaseAlive {
			o.orphan = time.Time{}
			return j.audit(id, o, present[owner])
		}
		if o.state.Status == schema.StatusCancelling {
			return ignoreMoved(j.w.endCancelled(ctx, j.w.copyOf(ctx, id), o.state, o.seq))
		}
	}
	if o.orphan.IsZero() {
		o.orphan = time.Now()
	}
	if time.Since(o.orphan) < j.w.timing.Lost {
		return nil
	}
	for _, seq := range []uint64{o.state.OwnerSeq, o.again} {
		there, err := j.w.queuedAt(ctx, id, seq)
		if err != nil || there {
			return err
		}
	}
	return j.requeue(ctx, id, o)
}

// audit finds rollouts whose live worker does not know of them: the answer to
// its claim was lost.
func (j *janitor) audit(id schema.ID, o *watched, p *schema.Presence) error {
	if p == nil || slices.Contains(p.Running, id) {
		o.missing = 0
		return nil
	}
	if o.missing++; o.missing < 2 {
		return nil
	}
	o.missing = 0
	return j.w.tell(o.state.Worker, &schema.Control{V: schema.Version, Do: schema.ControlGiveBack, ID: id, Attempt: o.state.Attempt})
}

// queuedAt reports whether the queue has a message of this rollout there.
func (b *Broker) queuedAt(ctx context.Context, id schema.ID, seq uint64) (bool, error) {
	if seq == 0 {
		return false, nil
	}
	m, err := b.message(ctx, subjects.StreamRequests, seq)
	return m != nil && requestID(m.Data) == id, err
}

func requestID(data []byte) schema.ID {
	if id, ok := schema.PeekID(data); ok {
		return id
	}
	var q schema.Request
	_ = schema.Decode(data, &q) // whatever it is, it is not the one looked for
	return q.ID
}

// requeue makes a lost request again from the copy that its worker kept.
func (j *janitor) requeue(ctx context.Context, id schema.ID, o *watched) error {
	m, err := j.w.last(ctx, subjects.StreamRollouts, subjects.RequestCopy(id))
	if err != nil {
		return err
	}
	if m == nil {
		j.w.log.Error().Str("rollout", string(id)).Msg("its request is lost and no copy was kept; its trainer submits it again")
		return nil
	}
	subject := m.Header.Get(subjects.HeaderSubject)
	if _, ok := subjects.ParseRequest(subject); !ok {
		subject = subjects.Request(subjects.DefaultLane, id.Trainer())
	}
	crash.Here("janitor.before")
	again := &nats.Msg{Subject: subject, Data: m.Data, Header: nats.Header{headerMsgID: {fmt.Sprintf("%s.%d.%d", id, o.state.Attempt, o.seq)}}}
	ack, err := j.w.js.PublishMsg(ctx, again)
	if err != nil {
		return fmt.Errorf("make the request of %s again: %w", id, err)
	}
	o.again = ack.Sequence
	crash.Here("janitor.republished")
	j.w.log.Warn().Str("rollout", string(id)).Msg("the queue had lost a request; it was made again")
	return nil
}

// purge removes what is kept of rollouts that ended longer ago than the
// retention, by the server's clock.
func (j *janitor) purge(ctx context.Context, retention time.Duration) error {
	s, err := j.w.js.Stream(ctx, subjects.StreamRollouts)
	if err != nil {
		return fmt.Errorf("open stream %s: %w", subjects.StreamRollouts, err)
	}
	before := s.CachedInfo().TimeStamp.Add(-retention)
	var old []schema.ID
	err = j.w.newest(ctx, subjects.StreamRollouts, subjects.StateFilter, 0, func(m jetstream.Msg, meta *jetstream.MsgMetadata) bool {
		if meta.Timestamp.After(before) {
			return false
		}
		id, ok := subjects.RolloutID(m.Subject())
		var s schema.State
		if ok && schema.Decode(m.Data(), &s) == nil && s.Status.Terminal() {
			old = append(old, id)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, id := range old {
		if err := s.Purge(ctx, jetstream.WithPurgeSubject(subjects.RolloutOf(id))); err != nil {
			return fmt.Errorf("purge %s: %w", id, err)
		}
	}
	if len(old) > 0 {
		j.w.log.Info().Int("rollouts", len(old)).Msg("finished rollouts were purged")
	}
	return nil
}
