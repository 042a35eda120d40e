package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// janitor repairs lost rollouts and removes old ones. One worker of the pool has
// it. It knows every rollout that has not ended; each round reads only the states
// that were written since the last one.
type janitor struct {
	*base
	resolver *resolver
	requests *requests
	puller   *puller
	of       map[string]*trainerCheck // by trainer; nil: this worker is not known to be the janitor
	purged   time.Time                // when finished rollouts were last looked for
}

// trainerCheck checks the rollouts of one trainer, round after round.
type trainerCheck struct {
	*base
	resolver *resolver
	requests *requests
	puller   *puller
	tid      string
	next     uint64 // sequence of the first state that was not read yet
	open     map[schema.ID]*watched
	bad      map[schema.ID]*broker.UnreadableRecord
	idle     map[class]*absenceTimer // classes with requests that no live worker can run

	rounds int // so far, for restore
}

func newTrainerCheck(j *janitor, tid string) *trainerCheck {
	return &trainerCheck{base: j.base, resolver: j.resolver, requests: j.requests, puller: j.puller, tid: tid, open: map[schema.ID]*watched{}, bad: map[schema.ID]*broker.UnreadableRecord{}, idle: map[class]*absenceTimer{}}
}

type watched struct {
	broker.Record[schema.State]
	orphan  time.Time // time when its owner's lease was first absent; zero: its owner is alive
	missing int       // number of rounds in which its worker's presence did not list it
	rounds  int       // number of rounds in which a live worker had it
	again   uint64    // sequence of its republished request
}

// run runs the janitor's rounds while this worker is the janitor.
func (j *janitor) run(ctx context.Context) {
	for wire.Pause(ctx, j.timing.Tidy) == nil {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		mine, err := j.elect(op)
		cancel()
		if err != nil || !mine { // another worker may publish requests again, which this one does not know
			j.of, j.purged = nil, time.Time{}
			continue
		}
		if j.of == nil {
			j.of = map[string]*trainerCheck{}
		}
		if err := j.round(ctx); err != nil && ctx.Err() == nil {
			j.log.Warn().Err(err).Msg("the janitor's round did not end")
		}
	}
}

// elect makes this worker the janitor until the janitor's lease expires, or
// renews that lease. It returns false if another worker has it.
func (j *janitor) elect(ctx context.Context) (bool, error) {
	me := j.wid + "." + j.instance
	m, err := j.broker.Messages.Last(ctx, subjects.StreamLeases, subjects.JanitorLease)
	if err != nil {
		return false, err
	}
	var seq uint64
	if m != nil {
		if seq = m.Sequence; string(m.Data) != me {
			return false, nil
		}
	}
	msg := &nats.Msg{Subject: subjects.JanitorLease, Data: []byte(me), Header: nats.Header{wire.HeaderExpect: {strconv.FormatUint(seq, 10)}}}
	_, err = j.broker.Messages.PutMsg(ctx, msg)
	if errors.Is(err, broker.ErrMoved) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("become the janitor: %w", err)
	}
	return true, nil
}

// fleetView has the records of all workers, which the janitor reads once per round.
type fleetView struct {
	present map[string]*schema.Presence // by worker and instance
	leases  map[string]leaseStatus      // those read so far
}

func (j *janitor) round(ctx context.Context) error {
	trainers, err := j.broker.Trainers.With(ctx, subjects.AnyRecord)
	if err != nil {
		return err
	}
	all, err := j.broker.Records.Workers(ctx)
	if err != nil {
		return err
	}
	now := fleetView{map[string]*schema.Presence{}, map[string]leaseStatus{}}
	for i := range all {
		now.present[all[i].Worker+"."+all[i].Instance] = &all[i]
	}
	maps.DeleteFunc(j.of, func(tid string, _ *trainerCheck) bool { return !slices.Contains(trainers, tid) })
	r := j.cfg.Retention
	old := r > 0 && time.Since(j.purged) > min(r/4, 10*time.Minute)
	var errs []error // each of one trainer; the others are still looked after
	for _, tid := range trainers {
		o := j.of[tid]
		if o == nil {
			o = newTrainerCheck(j, tid)
			j.of[tid] = o
		}
		err := o.round(ctx, now)
		if err == nil && old {
			err = o.purge(ctx, r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("look after trainer %s: %w", tid, err))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if old {
		j.purged = time.Now()
	}
	return errors.Join(errs...)
}

func (j *trainerCheck) round(ctx context.Context, now fleetView) error {
	if err := j.read(ctx); err != nil {
		return err
	}
	var errs []error // each of one rollout; the others are still checked
	for id, o := range j.open {
		if err := j.look(ctx, id, o, now); err != nil {
			errs = append(errs, fmt.Errorf("look after %s: %w", id, err))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	for id, bad := range j.bad {
		if err := ignoreMoved(j.resolver.repair(ctx, j.copyOf(ctx, id), bad)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(j.bad, id)
	}
	return errors.Join(append(errs, j.unable(ctx, now))...)
}

// read updates open and bad from the states that are new in the stream.
func (j *trainerCheck) read(ctx context.Context) error {
	name := subjects.Records(j.tid)
	s, err := j.broker.JetStream().Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("open stream %s: %w", name, err)
	}
	if s.CachedInfo().State.LastSeq+1 < j.next { // the store was wiped
		j.next, j.open, j.bad = 0, map[schema.ID]*watched{}, map[schema.ID]*broker.UnreadableRecord{}
	}
	return j.broker.Messages.Read(ctx, name, subjects.StateFilter(j.tid), j.next, func(m jetstream.Msg, meta *jetstream.MsgMetadata) bool {
		j.next = meta.Sequence.Stream + 1
		id, ok := subjects.ParseRecord(m.Subject())
		if !ok {
			return true
		}
		var s schema.State
		if err := broker.DecodeRecord(m.Subject(), m.Data(), &s); err != nil {
			delete(j.open, id)
			j.bad[id] = &broker.UnreadableRecord{Subject: m.Subject(), Seq: meta.Sequence.Stream, Data: m.Data(), Why: err}
			return true
		}
		delete(j.bad, id)
		if s.Status.Terminal() {
			delete(j.open, id)
			return true
		}
		o := j.open[id]
		if o == nil {
			o = &watched{}
			j.open[id] = o
		}
		*o = watched{Record: broker.Record[schema.State]{Value: s, Seq: meta.Sequence.Stream}, again: o.again, rounds: o.rounds}
		return true
	})
}

// look checks one rollout: it audits a live owner, ends a cancelled rollout
// without an owner, and requeues a request that the queue has lost.
func (j *trainerCheck) look(ctx context.Context, id schema.ID, o *watched, now fleetView) error {
	m := j.resolver.about(id, askTidy)
	m.record, m.known, m.message, m.listed = o.Record, true, o.again, true
	owner := ""
	if o.Value.Owned() {
		owner = o.Value.Worker + "." + o.Value.Instance
		m.lease = now.leases[owner]
		if p := now.present[owner]; p != nil && !slices.Contains(p.Running, id) {
			o.missing++
			m.listed = o.missing < 2
		} else {
			o.missing = 0
		}
	}
	m.lost = !o.orphan.IsZero() && time.Since(o.orphan) >= j.timing.Lost
	s, err := j.resolver.resolve(ctx, m)
	if err != nil {
		return err
	}
	if owner != "" && m.record.Seq == o.Seq {
		now.leases[owner] = m.lease
	}
	switch {
	case m.lease == leaseAlive:
		o.orphan = time.Time{}
	case o.orphan.IsZero():
		o.orphan = time.Now()
	}
	switch s {
	case stepAudit: // the answer to the claim was lost
		o.missing = 0
		return j.command(o.Value.Worker, &schema.Control{V: schema.Version, Do: schema.ControlGiveBack, ID: id, Attempt: o.Value.Attempt})
	case stepRemake:
		return j.requeue(ctx, id, o)
	case stepFree:
		return j.free(ctx, id, o)
	case writeOutcome, writeFinish:
		j.hint(id)
	case stepNone:
		if m.lease == leaseAlive && o.Value.Owned() {
			return j.checkCopy(ctx, id, o)
		}
	default:
	}
	return nil
}

// checkCopyEvery is the number of rounds between two checks of a running
// rollout's copy.
const checkCopyEvery = 20

// checkCopy asks a live worker to store the copy of a request again if it is
// gone. The first check is in the second round, so that it costs nothing for
// short rollouts.
func (j *trainerCheck) checkCopy(ctx context.Context, id schema.ID, o *watched) error {
	if o.rounds++; o.rounds%checkCopyEvery != 2 {
		return nil
	}
	m, err := j.broker.Messages.Last(ctx, subjects.Records(id.Trainer()), subjects.RequestCopy(id))
	if err != nil || m != nil {
		return err
	}
	return j.command(o.Value.Worker, &schema.Control{V: schema.Version, Do: schema.ControlCopy, ID: id, Attempt: o.Value.Attempt})
}

// queuedIn reports whether a queue has a message of this rollout at sequence seq.
func queuedIn(ctx context.Context, from *broker.Messages, stream string, id schema.ID, seq uint64) (bool, error) {
	if seq == 0 {
		return false, nil
	}
	m, err := from.At(ctx, stream, seq)
	return m != nil && requestID(m.Data) == id, err
}

func requestID(data []byte) schema.ID {
	if id, ok := schema.PeekID(data); ok {
		return id
	}
	var q schema.Request
	_ = schema.Decode(data, &q) // after an error ID is empty, or the message is another rollout's
	return q.ID
}

// requeue publishes a lost request again, from the copy that its worker kept. That of
// a full trainer goes to the plain lane.
func (j *trainerCheck) requeue(ctx context.Context, id schema.ID, o *watched) error {
	m, err := j.broker.Messages.Last(ctx, subjects.Records(j.tid), subjects.RequestCopy(id))
	if err != nil {
		return err
	}
	if m == nil {
		return nil // it was purged since
	}
	subject := m.Header.Get(subjects.HeaderSubject)
	if j.resolver.roster.full(j.tid) {
		subject = subjects.Requests
	} else if _, ok := subjects.ParseRequest(subject); !ok {
		subject = subjects.Request(subjects.DefaultLane, id.Trainer())
	}
	crash.Here("janitor.before")
	// Two janitors store it once. The id has the sequence of the one before: the
	// server would drop the next one as its duplicate, although that one is gone.
	again := &nats.Msg{Subject: subject, Data: m.Data, Header: nats.Header{wire.HeaderMsgID: {fmt.Sprintf("%s.%d.%d.%d", id, o.Value.Attempt, o.Seq, o.again)}}}
	traces.Put(again.Header, traces.Of(m.Header))
	seq, err := j.broker.Messages.PutMsg(ctx, again)
	if err != nil {
		return fmt.Errorf("make the request of %s again: %w", id, err)
	}
	o.again = seq
	crash.Here("janitor.republished")
	j.log.Warn().Str("rollout", string(id)).Str("subject", subject).Msg("no worker could get a request from its queue; it was made again")
	return nil
}

// purge removes the records of rollouts that ended before the retention, by the
// server's clock.
func (j *trainerCheck) purge(ctx context.Context, retention time.Duration) error {
	name := subjects.Records(j.tid)
	s, err := j.broker.JetStream().Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("open stream %s: %w", name, err)
	}
	before := s.CachedInfo().TimeStamp.Add(-retention)
	var old []schema.ID
	err = j.broker.Messages.Read(ctx, name, subjects.StateFilter(j.tid), 0, func(m jetstream.Msg, meta *jetstream.MsgMetadata) bool {
		if meta.Timestamp.After(before) {
			return false
		}
		id, ok := subjects.ParseRecord(m.Subject())
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
		if err := s.Purge(ctx, jetstream.WithPurgeSubject(subjects.RecordsOf(id))); err != nil {
			return fmt.Errorf("purge %s: %w", id, err)
		}
	}
	if len(old) > 0 {
		j.log.Info().Str("trainer", j.tid).Int("rollouts", len(old)).Msg("finished rollouts were purged")
	}
	return nil
}
