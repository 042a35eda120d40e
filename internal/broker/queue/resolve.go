package queue

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// resolution is a rollout with everything that a decision about it needs: its state
// record, and this worker's job, message and result.
type resolution struct {
	facts
	id     schema.ID
	known  bool                        // decide with record, which may be old; false: read it first
	record broker.Record[schema.State] // the state record
	req    *schema.Request             // nil: requestOf finds it when it is needed
	find   *search                     // of askCancel
	d      *delivery                   // of askRun, askRefuse and askPark; of askCancel if requestOf found the message
	own    *Job                        // the job that asks
	result schema.Result               // of the job, for askCommit and askReturn
	watch  absenceTimer                // measures how long the owner's lease has been absent
}

// resolver decides about rollouts, and carries the decisions out.
type resolver struct {
	*base
	jobs   *jobs
	leases *leases
	holds  *holds
	roster *roster
	writes *writes
	spans  *spans
}

// about returns a resolution for a rollout.
func (v *resolver) about(id schema.ID, why ask) *resolution {
	return &resolution{id: id, facts: facts{ask: why, worker: v.wid, instance: v.instance}}
}

// aboutMessage returns a resolution for a queue message.
func (v *resolver) aboutMessage(d *delivery, req *schema.Request, why ask) *resolution {
	m := v.about(req.ID, why)
	m.req, m.d, m.message, m.ack, m.maxAttempts, m.floor = req, d, d.seq, d.ack, req.MaxAttempts, req.AttemptFloor
	return m
}

// resolve reads the state of a rollout, decides, and carries the decision out. If
// the record has moved, or a write fails with a temporary error or an unknown outcome,
// it reads and decides again, until the context ends. It returns other errors. Without an
// error it returns the last step; m.record has the state, and steps that write no
// state are left to the caller.
func (v *resolver) resolve(ctx context.Context, m *resolution) (step, error) {
	for try := 0; ; {
		if err := v.learn(ctx, m); err != nil {
			return stepNone, err
		}
		d := decide(m.record, m.facts)
		if !d.writes() {
			more, err := v.look(ctx, m, d.step)
			if err != nil || !more {
				return d.step, err
			}
			continue
		}
		err := v.carryOut(ctx, m, d)
		switch {
		case err == nil && m.goesOn(d.step):
			continue // with the record that was written
		case err == nil || isFinal(err):
			return d.step, err
		}
		m.unsure(err)
		if perr := v.pause(ctx, m, d.step, try, err); perr != nil {
			return d.step, errors.Join(err, perr)
		}
		try++
	}
}

// goesOn reports whether another decision follows the write of a step.
func (m *resolution) goesOn(s step) bool {
	return s == writeClaim || s == writeBack && (m.ask == askRun || m.ask == askPark)
}

// isFinal reports whether a write that failed would fail again.
func isFinal(err error) bool {
	rejected := broker.Rejected(err) && !errors.Is(err, broker.ErrMoved) && !broker.Passing(err)
	return rejected || errors.Is(err, nats.ErrConnectionClosed)
}

// pause waits after a failed write. If another writer was first, its write is over in a
// moment, and after the first time there is no wait.
func (v *resolver) pause(ctx context.Context, m *resolution, s step, try int, err error) error {
	switch {
	case !errors.Is(err, broker.ErrMoved):
		v.again(try, string(s)+" "+string(m.id), err)
		return wire.Pause(ctx, wire.Backoff(try))
	case try == 0:
		return nil
	default:
		return wire.Pause(ctx, wire.RetryFirst/4)
	}
}

// unsure forgets the facts that may have changed since a write failed. If the
// outcome of the write is unknown, the server may have been out of reach for the
// owner, too. It could not renew its lease then, so its absence is measured anew.
func (m *resolution) unsure(err error) {
	m.known, m.moved, m.lease, m.stored = false, true, leaseUnknown, resultUnknown
	if !errors.Is(err, broker.ErrMoved) {
		m.watched, m.watch = false, absenceTimer{}
	}
}

// learn reads the state, unless it is known, and updates the facts of this
// process. An unreadable state is repaired.
func (v *resolver) learn(ctx context.Context, m *resolution) error {
	for !m.known {
		before := m.record.Seq
		now, err := v.readState(ctx, m.id)
		if err != nil {
			if err := v.mend(ctx, m, err); err != nil {
				return err
			}
			continue
		}
		if now.Seq == 0 {
			now.Value = schema.State{V: schema.Version, ID: m.id, Trainer: m.id.Trainer()}
		}
		m.record, m.known = now, true
		if now.Seq != before {
			m.lease, m.stored, m.watched, m.watch = leaseUnknown, resultUnknown, false, absenceTimer{}
		}
	}
	v.jobs.past(&m.record.Value)
	j := v.jobs.get(m.id)
	m.job = j != nil && j != m.own
	m.ran = v.jobs.hasRun(m.id, m.record.Value.Attempt)
	m.now = time.Now().UnixMilli()
	return nil
}

// look gets a fact that the decision needs. more is false if the step is for the
// caller.
func (v *resolver) look(ctx context.Context, m *resolution, s step) (more bool, err error) {
	state := &m.record.Value
	switch s {
	case lookAtLease:
		m.lease, err = v.leases.of(ctx, state.Worker, state.Instance)
	case lookAtResult:
		r, err := broker.Insist(ctx, &v.log, "look for the result of "+string(m.id), func(ctx context.Context) (broker.Record[schema.Result], error) {
			return broker.ReadRecord[schema.Result](ctx, v.broker.Messages, subjects.Result(m.id))
		})
		if err != nil {
			m.known = false
			return true, v.mend(ctx, m, err)
		}
		if m.stored = resultNone; r.Seq != 0 {
			m.stored, m.facts.result = resultStored, &r.Value
		}
	case lookAtQueue:
		m.queue, err = v.inQueue(ctx, m.id, state.OwnerSeq, m.message)
	case storeCopy:
		err = v.writes.copy(ctx, m)
	case stepWatch:
		err = v.confirmAbsence(ctx, m)
	default:
		return false, nil
	}
	return true, err
}

// inQueue tells whether a queue has a message of the rollout, at one of these
// sequences or parked, and otherwise whether its copy was kept.
func (v *resolver) inQueue(ctx context.Context, id schema.ID, seqs ...uint64) (queueStatus, error) {
	for _, seq := range seqs {
		there, err := queuedIn(ctx, v.broker.Messages, subjects.StreamPlain, id, seq)
		if err != nil {
			return queueUnknown, err
		}
		if there {
			return queueHas, nil
		}
	}
	m, err := v.message(ctx, id, seqs...)
	switch {
	case err != nil:
		return queueUnknown, err
	case m != nil && v.roster.full(id.Trainer()):
		return queueFull, nil
	case m != nil:
		return queueHas, nil
	}
	m, err = v.broker.Messages.Last(ctx, subjects.Records(id.Trainer()), subjects.RequestCopy(id))
	switch {
	case err != nil:
		return queueUnknown, err
	case m == nil:
		return queueNowhere, nil
	}
	return queueLost, nil
}

// confirmAbsence waits for a part of Timing.Confirm and has the lease read again. It
// sets watched once the lease was absent for all of Confirm.
func (v *resolver) confirmAbsence(ctx context.Context, m *resolution) error {
	left := v.timing.Confirm - m.watch.look(time.Now(), v.timing.Confirm/2)
	if left <= 0 {
		v.log.Info().Str("rollout", string(m.id)).Str("from", m.record.Value.Worker).Int("attempt", m.record.Value.Attempt).Msg("taking over a rollout whose worker is gone")
		m.watched = true
		crash.Here("takeover.watched")
		return nil
	}
	if err := m.d.progress(); err != nil {
		return err
	}
	if err := wire.Pause(ctx, min(left, v.timing.Renew/2)); err != nil {
		return err
	}
	m.known, m.lease = false, leaseUnknown
	return nil
}

// carryOut does the write of a decision. After success m.record has the new state.
func (v *resolver) carryOut(ctx context.Context, m *resolution, d decision) error {
	op, cancel := context.WithTimeout(ctx, 2*wire.OpTimeout)
	defer cancel()
	var seq uint64
	var err error
	switch d.step {
	case writeClaim:
		if m.own == nil { // registered before the write, so that the rollout counts as running here
			if m.own = v.newJob(m.req, m.d); m.own == nil {
				return broker.ErrMoved // another slot of this worker claims it
			}
		}
		m.own.Before = m.record.Value.Attempt
		seq, err = v.writes.claim(op, m, &d.next)
	case writeCommit:
		seq, err = v.writes.commit(op, m, &d)
	case writeOutcome:
		r := v.outcomeOf(op, m, d.status)
		v.writes.keep(op, m)
		d.next = concluded(d.next, &r)
		if seq, err = v.writes.both(op, d.next, m.record.Seq, r, 0); err == nil && d.status == schema.StatusCancelled {
			crash.Here("cancel.committed")
		}
	default:
		seq, err = v.broker.Messages.Put(op, subjects.State(m.id), &d.next, m.record.Seq)
		if err == nil && d.step == writeFinish {
			crash.Here("takeover.finished")
		}
	}
	if err == nil {
		v.count(m, &d)
		v.spans.decided(op, m, &d)
		m.record, m.known = broker.Record[schema.State]{Value: d.next, Seq: seq}, true
		m.stored = resultUnknown
		v.jobs.past(&d.next)
	}
	return err
}

// count counts a decision that was carried out.
func (v *resolver) count(m *resolution, d *decision) {
	switch {
	case d.next.Status.Terminal() && !m.record.Value.Status.Terminal():
		v.cfg.Metrics.RolloutEnded(d.next.Status, d.next.Fault)
	case d.step == writeClaim && m.watched:
		v.cfg.Metrics.TookOver()
	}
}

// outcomeOf returns the result of a rollout that no job runs.
func (v *resolver) outcomeOf(ctx context.Context, m *resolution, status schema.Status) schema.Result {
	state := &m.record.Value
	fault := m.fault
	switch {
	case status == schema.StatusDead && state.Fault != nil:
		fault = state.Fault
	case status == schema.StatusDead:
		fault = schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "the workers of its %d tries ended without a result", state.Tries)
	case status == schema.StatusFailed && fault == nil:
		fault = schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "the queue has lost the request, and no copy of it was kept")
	}
	r := verdict(v.requestOf(ctx, m), state.Attempt, status, fault)
	if status == schema.StatusCancelled {
		r = cancelled(r, m.cancelFault())
	}
	r.Worker = v.wid
	return r
}

// cancelFault returns the fault of a cancelled rollout: the one in a state that was
// marked as cancelling, or that of this cancel, or one without a reason.
func (m *resolution) cancelFault() *schema.Fault {
	s := &m.record.Value
	switch {
	case s.Status == schema.StatusCancelling && s.Fault != nil && s.Fault.Code == schema.CodeCancelled:
		return s.Fault
	case m.ask == askCancel:
		return m.fault
	}
	return cancelFault("")
}

// requestOf returns the request of a resolution: the caller's, or the queued one, or
// the kept copy, or one with only the id and trainer.
func (v *resolver) requestOf(ctx context.Context, m *resolution) *schema.Request {
	if m.req == nil && m.find != nil && m.record.Seq == 0 { // it was never claimed
		if m.req, m.d = m.find.request(ctx, m.id, m.message); m.d != nil {
			m.message = m.d.seq
		}
	}
	if m.req == nil {
		m.req = v.copyOf(ctx, m.id)
	}
	return m.req
}
