package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Take waits for a request that is this worker's to run and claims it: its
// state record says so before Take returns. What cannot be run here is settled
// on the way. It ends with the context's cause.
func (w *WorkerSide) Take(ctx context.Context) (*Job, error) {
	for {
		d, err := w.pull(ctx)
		if d != nil && ctx.Err() != nil {
			_ = d.again(0)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			w.log.Debug().Err(err).Msg("no request could be pulled")
			if err := pause(ctx, 250*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		}
		if d == nil {
			continue
		}
		w.handover.taken(d)
		job, err := w.claim(ctx, d)
		if err != nil {
			if ctx.Err() == nil {
				w.log.Warn().Err(err).Str("subject", d.subject).Uint64("message", d.seq).Msg("a request could not be claimed, it goes back")
			}
			_ = d.again(time.Second)
			continue
		}
		if job != nil {
			return job, nil
		}
	}
}

// claim makes the message this worker's job, or settles it and returns nil.
func (w *WorkerSide) claim(ctx context.Context, d *delivery) (*Job, error) {
	req, err := w.read(ctx, d)
	if err != nil || req == nil {
		return nil, err
	}
	if lacks := w.lacks(req); lacks != nil {
		return nil, w.pass(ctx, d, req, lacks)
	}
	if req.DelayMS > 0 && d.delivered == 1 {
		return nil, d.again(time.Duration(req.DelayMS) * time.Millisecond)
	}
	var watched *watch
	for {
		state, seq, found, err := w.readState(ctx, req.ID)
		if err != nil {
			return nil, err
		}
		if found && state.Status.Terminal() { // a duplicate, or an ack that was lost and its hint with it
			w.hint(req.ID)
			return nil, d.done(ctx)
		}
		if found && state.Owned() {
			free, err := w.owned(ctx, d, req, state, seq, &watched)
			if errors.Is(err, errLookAgain) {
				continue
			}
			if err != nil || !free {
				return nil, err
			}
		}
		if !found {
			state = schema.State{V: schema.Version, ID: req.ID, Trainer: req.Trainer, Status: schema.StatusQueued}
		}
		if state.Tries >= req.MaxAttempts {
			return nil, w.bequeath(ctx, d, req, state, seq)
		}
		job, err := w.own(ctx, d, req, state, seq)
		if errors.Is(err, errMoved) {
			continue
		}
		return job, err
	}
}

// errLookAgain means that the state was changed by now.
var errLookAgain = errors.New("look again")

// watch is how long an owner's lease has been seen absent.
type watch struct {
	stateSeq uint64
	vigil
}

// owned decides about a rollout that somebody has. free: it may be taken over;
// otherwise the message is settled.
func (w *WorkerSide) owned(ctx context.Context, d *delivery, req *schema.Request, state schema.State, seq uint64, watched **watch) (free bool, err error) {
	if state.Worker == w.wid && state.Instance == w.instance {
		if j := w.job(req.ID); j != nil {
			if d.seq == state.OwnerSeq {
				j.adopt(d)
				return false, nil
			}
			return false, d.done(ctx) // a duplicate
		}
		return false, errors.Join(w.giveBack(ctx, state, seq), errLookAgain) // the answer to a claim was lost
	}
	standing, err := w.leaseOf(ctx, state.Worker, state.Instance)
	switch {
	case err != nil:
		return false, err
	case standing == leaseAlive && d.seq == state.OwnerSeq:
		return false, d.again(w.timing.Busy)
	case standing == leaseAlive:
		return false, d.done(ctx) // a duplicate; the owner holds the other one
	case state.Status == schema.StatusCancelling:
		return false, errors.Join(w.endCancelled(ctx, req, state, seq), errLookAgain)
	case standing == leaseEnded: // its successor says so
		return true, nil
	}
	if *watched == nil || (*watched).stateSeq != seq {
		*watched = &watch{stateSeq: seq}
	}
	left := w.timing.Confirm - (*watched).look(time.Now(), w.timing.Confirm/2)
	if left <= 0 {
		w.log.Info().Str("rollout", string(req.ID)).Str("from", state.Worker).Int("attempt", state.Attempt).Msg("taking over a rollout whose worker is gone")
		return true, nil
	}
	if err := d.progress(); err != nil {
		return false, err
	}
	if err := pause(ctx, min(left, w.timing.Renew/2)); err != nil {
		return false, err
	}
	return false, errLookAgain
}

// adopt takes the newest handle of a job's message.
func (j *Job) adopt(d *delivery) {
	if old := j.msg.Load(); d.received.After(old.received) {
		j.msg.CompareAndSwap(old, d)
	}
}

// own writes the state that makes the rollout this worker's, before anything
// runs. errMoved: somebody else was faster.
func (w *WorkerSide) own(ctx context.Context, d *delivery, req *schema.Request, state schema.State, seq uint64) (*Job, error) {
	j := w.newJob(req, d)
	if j == nil { // it is being claimed here by another slot
		return nil, d.again(time.Second)
	}
	next := state
	next.Status, next.Attempt = schema.StatusRunning, max(state.Attempt, req.AttemptFloor)+1
	if !crash.Broken("I4") {
		next.Tries++
	}
	next.OwnerSeq, next.Ack, next.Worker, next.Instance, next.Since = d.seq, d.ack, w.wid, w.instance, nowMS()
	crash.Here("claim.before")
	for try := 0; ; try++ {
		msg, err := expecting(subjects.State(req.ID), &next, seq)
		if err != nil {
			j.forget()
			return nil, err
		}
		at, err := w.writeClaim(ctx, d, req.ID, msg)
		if err == nil {
			return w.start(ctx, j, next, at)
		}
		if refused(err) && !errors.Is(err, errMoved) && !passing(err) {
			j.forget()
			return nil, err
		}
		// Refused, or not known: the state tells.
		now, at, found, rerr := w.readState(ctx, req.ID)
		switch {
		case rerr != nil: // left to the next delivery, which finds it without a job here
			j.forget()
			return nil, errors.Join(err, rerr)
		case found && now.Owned() && now.Worker == w.wid && now.Instance == w.instance && now.Attempt == next.Attempt && now.OwnerSeq == d.seq:
			return w.start(ctx, j, now, at)
		case !found && seq != 0 || found && at != seq:
			j.forget()
			return nil, errMoved
		}
		if err := pause(ctx, backoff(try)); err != nil {
			j.forget()
			return nil, err
		}
	}
}

// start begins a job that was claimed, unless an earlier attempt left its
// result without having come to write the state.
func (w *WorkerSide) start(ctx context.Context, j *Job, state schema.State, seq uint64) (*Job, error) {
	if state.Attempt > 1 {
		ended, err := w.finish(ctx, state.ID, state, seq)
		if err == nil && ended {
			err = errMoved // look again: it is over
		}
		if err != nil {
			j.forget()
			return nil, err
		}
	}
	return j.begin(state, seq), nil
}

// writeClaim keeps a copy of the request, from which a lost queue message is
// made again, and then writes the state. Both go over the same connection to
// the same stream, so that the copy is there when the state is. They need not
// be one batch: a copy without its state says nothing new, and a batch costs a
// server with one replica a file store of its own.
func (w *WorkerSide) writeClaim(ctx context.Context, d *delivery, id schema.ID, state *nats.Msg) (uint64, error) {
	kept := &nats.Msg{Subject: subjects.RequestCopy(id), Data: d.data, Header: nats.Header{subjects.HeaderSubject: {d.subject}}}
	connection := w.bulk.Stats().Reconnects
	if err := w.bulk.PublishMsg(kept); err != nil {
		return 0, fmt.Errorf("write %s: %w", kept.Subject, err)
	}
	at, err := w.putMsg(ctx, state)
	if err != nil || w.bulk.Stats().Reconnects == connection {
		return at, err
	}
	// The copy may have gone down with the old connection.
	op, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	if _, err := w.js.PublishMsg(op, kept); err != nil {
		w.log.Warn().Err(err).Str("rollout", string(id)).Msg("no copy of a request is known to be kept")
	}
	return at, nil
}

// begin makes the job one that is held to its state.
func (j *Job) begin(s schema.State, seq uint64) *Job {
	j.mu.Lock()
	j.state, j.stateSeq, j.Attempt = s, seq, s.Attempt
	j.mu.Unlock()
	j.claimed.Store(true)
	if s.Status == schema.StatusCancelling {
		j.end(ErrCancelled)
	}
	if on, _ := j.w.standing.get(); on { // the lease came into doubt meanwhile
		j.hold.set(true)
	}
	select {
	case j.w.news <- struct{}{}:
	default:
	}
	crash.Here("claim.after")
	return j
}

// bequeath ends a rollout whose tries are used up, with the last fault.
func (w *WorkerSide) bequeath(ctx context.Context, d *delivery, req *schema.Request, state schema.State, seq uint64) error {
	fault := state.Fault
	if fault == nil {
		fault = schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "the workers of its %d tries ended without a word", state.Tries)
	}
	return w.refuse(ctx, d, req, state, seq, schema.StatusDead, fault)
}

// refuse commits a result for a rollout that does not run, and takes its
// message off the queue.
func (w *WorkerSide) refuse(ctx context.Context, d *delivery, req *schema.Request, state schema.State, seq uint64, status schema.Status, fault *schema.Fault) error {
	if err := w.conclude(ctx, state, seq, verdict(req, state.Attempt, status, fault)); err != nil {
		return err
	}
	return d.done(ctx)
}

// conclude commits a result that no job stands behind, if the state is still
// as it was read.
func (w *WorkerSide) conclude(ctx context.Context, state schema.State, seq uint64, r schema.Result) error {
	r.Worker = w.wid
	state = concluded(state, &r)
	_, err := w.commitAtOnce(ctx, state, seq, r)
	if errors.Is(err, errMoved) { // its worker may have left a result
		if ended, ferr := w.finish(ctx, r.ID, state, seq); ended || ferr != nil {
			err = ferr
		}
	}
	if err != nil {
		return fmt.Errorf("end %s as %s: %w", r.ID, r.Status, err)
	}
	w.hint(r.ID)
	return nil
}

// giveBack releases a state that names this worker without a job here: the
// answer to the claim was lost.
func (w *WorkerSide) giveBack(ctx context.Context, state schema.State, seq uint64) error {
	if state.Status == schema.StatusCancelling {
		req := &schema.Request{ID: state.ID, Trainer: state.Trainer}
		return ignoreMoved(w.endCancelled(ctx, req, state, seq))
	}
	next := queued(state, true)
	_, err := w.put(ctx, subjects.State(state.ID), &next, seq)
	return ignoreMoved(err)
}

func ignoreMoved(err error) error {
	if errors.Is(err, errMoved) {
		return nil
	}
	return err
}
