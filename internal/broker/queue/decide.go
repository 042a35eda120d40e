package queue

import (
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// ask is the reason for which a worker decides about a rollout.
type ask int

const (
	askRun    ask = iota // a queue message: run the rollout, or settle the message
	askRefuse            // a queue message of a request that no worker can run
	askReject            // a queue message that is no valid request
	askPark              // a queue message of a request that this worker cannot run now
	askCommit            // the job has a result
	askReturn            // the job puts the rollout back
	askOwned             // the job checks whether the rollout is still its own
	askCancel            // the trainer ends the rollout
	askAudit             // the state may name this worker although it has no job: a janitor reported it, or a claim was interrupted
	askTidy              // the janitor checks the rollout
)

// facts are the circumstances of a decision besides the state record. A fact that
// needs a request to the server can be unknown: then decide returns a lookAt step,
// and resolve reads it.
type facts struct {
	ask
	worker, instance string // this worker
	job              bool   // this worker has a job for the rollout other than resolution.own
	attempt          int    // askRun: attempt of the claim that this resolution tried to write, 0: none; other asks: attempt of resolution.own
	ran              bool   // the attempt that the state names has begun on this worker, and its end is not stored

	copied      bool   // the copy of the request is known to be stored
	message     uint64 // sequence of the queue message
	ack         string // ack subject of the message
	now         int64  // Unix ms, for display only
	maxAttempts int
	floor       int // Request.AttemptFloor; the next attempt gets a higher number

	lease   leaseStatus // of the worker that the state names
	watched bool        // that lease was absent for Timing.Confirm while the state stayed the same
	stored  resultStatus
	result  *schema.Result // the stored one

	moved bool // an earlier write was refused, or its outcome is unknown: a result may be stored
	spend bool // askReturn: the try failed and counts
	fault *schema.Fault
	touch bool // askOwned: write the state again

	listed bool // askTidy: false if the owner's presence did not list the rollout in two rounds
	lost   bool // askTidy: no worker has had the rollout for Timing.Lost
	queue  queueStatus
}

// resultStatus tells whether a result record is stored although the state is not
// terminal yet.
type resultStatus int

const (
	resultUnknown resultStatus = iota
	resultNone
	resultStored
)

// queueStatus tells whether the queue has a message of the rollout.
type queueStatus int

const (
	queueUnknown queueStatus = iota
	queueHas
	queueFull    // as queueHas, but no worker takes it: the records of the trainer exceed their bound, see full.go
	queueLost    // the queue has no message, but the copy of the request exists
	queueNowhere // neither the message nor the copy exists
)

// step is one action of a worker for a rollout.
type step string

const (
	// Steps after which resolve decides again. Each sets a fact.
	lookAtLease  step = "read the lease"
	lookAtResult step = "look for a result"
	lookAtQueue  step = "look into the queue"
	storeCopy    step = "store the copy of the request"
	stepWatch    step = "watch the lease"

	// Writes of the state, on the condition that it is unchanged. next is the new
	// state.
	writeClaim   step = "claim"
	writeBack    step = "put back"
	writeMark    step = "mark as cancelling"
	writeTouch   step = "touch"
	writeFinish  step = "end with the stored result"
	writeCommit  step = "commit"            // the result of the job, then the state
	writeOutcome step = "end without a job" // a result that no job has, and the final state, in one batch

	// Steps that end resolve without a write of the state.
	stepBegin         step = "begin"                 // the claim is stored
	stepAdopt         step = "use the newer message" // the message of this worker's own job was delivered again: the job takes the newer delivery
	stepDrop          step = "drop the message"
	stepLater         step = "deliver it again later"
	stepPark          step = "park the message"
	stepEnded         step = "it has ended" // the state is terminal: publish the result hint again
	stepFence         step = "fence the job"
	stepStop          step = "stop the job" // it is cancelled
	stepContinue      step = "go on"
	stepForwardCancel step = "send the cancel to the owner"
	stepAudit         step = "ask the owner to give it back"
	stepRemake        step = "publish the request again"
	stepFree          step = "move it to the plain lane" // workers take requests from it even while the trainer is full
	stepNone          step = "nothing"
)

// decision is a step. A write has the next state; status is the status of the
// result that is stored with it.
type decision struct {
	step
	next   schema.State
	status schema.Status // of writeCommit and writeOutcome; empty: that of the job's result
}

// writes reports whether the step writes the state.
func (s step) writes() bool {
	switch s {
	case writeClaim, writeBack, writeMark, writeTouch, writeFinish, writeCommit, writeOutcome:
		return true
	default:
		return false
	}
}

func (f *facts) mine(s *schema.State) bool {
	return s.Worker == f.worker && s.Instance == f.instance
}

// decide returns the next step for a rollout with this state record. It is a
// function of its arguments alone. The decision table in docs/protocol.md lists
// every case.
func decide(r broker.Record[schema.State], f facts) decision {
	switch f.ask {
	case askRun:
		return decideRun(r, f)
	case askRefuse:
		return decideRefuse(r, f)
	case askReject:
		if r.Seq != 0 && (r.Value.Status.Terminal() || r.Value.Owned()) { // the rollout has an owner, or a result already
			return decision{step: stepDrop}
		}
		return outcome(r, f, schema.StatusFailed)
	case askPark:
		return decidePark(r, f)
	case askCommit, askReturn, askOwned:
		return decideJob(r, f)
	case askCancel:
		return decideCancel(r, f)
	case askAudit:
		if r.Seq == 0 || !r.Value.Owned() || !f.mine(&r.Value) || f.job {
			return decision{step: stepNone}
		}
		return giveBack(r, f)
	default:
		return decideTidy(r, f)
	}
}

// decideRun decides about a message of the queue.
func decideRun(r broker.Record[schema.State], f facts) decision {
	s := &r.Value
	switch {
	case r.Seq == 0 || s.Status == schema.StatusQueued:
		return claim(r, f)
	case s.Status.Terminal(): // a duplicate, or the ack was lost
		return decision{step: stepEnded}
	case f.mine(s) && f.attempt == s.Attempt && f.message == s.OwnerSeq: // the claim is stored
		switch { // an earlier attempt may have stored its result and died before the final state; it counts
		case s.Attempt > 1 && f.stored == resultUnknown:
			return decision{step: lookAtResult}
		case s.Attempt > 1 && f.stored == resultStored:
			return finish(r, f)
		case !f.copied:
			return decision{step: storeCopy}
		}
		return decision{step: stepBegin}
	case f.mine(s) && f.job && f.message == s.OwnerSeq:
		return decision{step: stepAdopt}
	case f.mine(s) && f.job: // a duplicate
		return decision{step: stepDrop}
	case f.mine(s):
		return giveBack(r, f)
	}
	if d, free := ownerStep(r, f); !free {
		return d
	}
	if s.Status == schema.StatusCancelling {
		return outcome(r, f, schema.StatusCancelled)
	}
	return claim(r, f)
}

// decideRefuse decides about a message of a request that no worker can run.
func decideRefuse(r broker.Record[schema.State], f facts) decision {
	s := &r.Value
	if r.Seq != 0 && s.Status.Terminal() {
		return decision{step: stepEnded}
	}
	if r.Seq != 0 && s.Owned() {
		if d, free := ownerStep(r, f); !free { // its owner may be running it
			return d
		}
		if s.Status == schema.StatusCancelling {
			return outcome(r, f, schema.StatusCancelled)
		}
	}
	return outcome(r, f, schema.StatusFailed)
}

// decidePark decides about a message of a request that this worker cannot run
// now. If a live worker has claimed the rollout with this message, the message is
// delivered again later. If it was claimed with another message, this one is dropped.
func decidePark(r broker.Record[schema.State], f facts) decision {
	s := &r.Value
	switch {
	case r.Seq == 0 || s.Status == schema.StatusQueued:
		return decision{step: stepPark}
	case s.Status.Terminal() || f.mine(s):
		return decideRun(r, f)
	case f.lease == leaseUnknown:
		return decision{step: lookAtLease}
	case f.lease == leaseAlive:
		d, _ := ownerStep(r, f)
		return d
	}
	return decision{step: stepPark} // a worker that can run it takes it over
}

// ownerStep returns the step while the owner's lease is alive or in doubt. free is
// true if another worker may take the rollout over or end it.
func ownerStep(r broker.Record[schema.State], f facts) (d decision, free bool) {
	s := &r.Value
	switch {
	case f.lease == leaseUnknown:
		return decision{step: lookAtLease}, false
	case f.lease == leaseAlive && f.message == s.OwnerSeq:
		return decision{step: stepLater}, false
	case f.lease == leaseAlive: // a duplicate; the owner has the other message
		return decision{step: stepDrop}, false
	case f.lease == leaseAbsent && !f.watched && s.Status != schema.StatusCancelling:
		return decision{step: stepWatch}, false
	}
	return decision{}, true
}

// claim starts the next attempt.
func claim(r broker.Record[schema.State], f facts) decision {
	next := r.Value
	if next.Tries >= f.maxAttempts {
		return outcome(r, f, schema.StatusDead)
	}
	if f.job { // another slot of this worker claims it, or an earlier job here still writes its end
		return decision{step: stepLater}
	}
	next.Status, next.Attempt, next.Tries = schema.StatusRunning, max(next.Attempt, f.floor)+1, next.Tries+1
	next.OwnerSeq, next.Ack, next.Worker, next.Instance, next.Since = f.message, f.ack, f.worker, f.instance, f.now
	return decision{step: writeClaim, next: next}
}

// giveBack decides for a rollout with a state that names this worker, although it has no job
// for it. A cancelled one ends; another goes back to the queue. The try counts only if the
// attempt began here.
func giveBack(r broker.Record[schema.State], f facts) decision {
	if r.Value.Status == schema.StatusCancelling {
		return outcome(r, f, schema.StatusCancelled)
	}
	var fault *schema.Fault
	if f.ran {
		fault = schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "the end of attempt %d could not be stored", r.Value.Attempt)
	}
	return decision{step: writeBack, next: putBack(r.Value, f.ran, fault)}
}

// putBack returns the state of a rollout that goes back to the queue.
func putBack(s schema.State, spend bool, fault *schema.Fault) schema.State {
	s.Status, s.Worker, s.Instance, s.Ack = schema.StatusQueued, "", "", ""
	if !spend {
		s.Tries = max(s.Tries-1, 0)
	}
	if fault != nil {
		s.Fault = fault
	}
	return s
}

// decideJob decides for the job that runs the rollout.
func decideJob(r broker.Record[schema.State], f facts) decision {
	s := &r.Value
	own := r.Seq != 0 && f.mine(s) && s.Attempt == f.attempt
	switch {
	case r.Seq != 0 && f.ask == askReturn && s.Status == schema.StatusQueued && s.Attempt == f.attempt: // an earlier writeBack is stored, but its PubAck was lost
		return decision{step: stepContinue}
	case !own, f.ask == askOwned && s.Status.Terminal():
		return decision{step: stepFence}
	case s.Status.Terminal(): // the rollout has ended: by this job's write, or by another worker while the lease was gone
		return decision{step: stepEnded}
	case f.ask == askOwned && f.touch && !f.moved:
		return decision{step: writeTouch, next: *s}
	case f.ask == askOwned && s.Status == schema.StatusCancelling:
		return decision{step: stepStop}
	case f.ask == askOwned:
		return decision{step: stepContinue}
	case f.moved && f.stored == resultUnknown:
		return decision{step: lookAtResult}
	case f.stored == resultStored:
		return finish(r, f)
	case s.Status == schema.StatusCancelling:
		return decision{step: writeCommit, next: *s, status: schema.StatusCancelled}
	case f.ask == askReturn && f.spend && s.Tries >= f.maxAttempts:
		return decision{step: writeCommit, next: *s, status: schema.StatusDead}
	case f.ask == askReturn:
		return decision{step: writeBack, next: putBack(*s, f.spend, f.fault)}
	}
	return decision{step: writeCommit, next: *s}
}

// decideCancel decides for a trainer that ends the rollout.
func decideCancel(r broker.Record[schema.State], f facts) decision {
	s := &r.Value
	switch {
	case r.Seq == 0 || s.Status == schema.StatusQueued:
		return outcome(r, f, schema.StatusCancelled)
	case s.Status.Terminal():
		return decision{step: stepEnded}
	case s.Status == schema.StatusRunning:
		next := *s
		next.Status, next.Fault = schema.StatusCancelling, f.fault
		return decision{step: writeMark, next: next}
	case f.mine(s) && !f.job:
		return giveBack(r, f)
	case f.lease == leaseUnknown:
		return decision{step: lookAtLease}
	case f.lease == leaseAlive:
		return decision{step: stepForwardCancel}
	}
	return outcome(r, f, schema.StatusCancelled)
}

// decideTidy decides for the janitor.
func decideTidy(r broker.Record[schema.State], f facts) decision {
	s := &r.Value
	if r.Seq == 0 || s.Status.Terminal() {
		return decision{step: stepNone}
	}
	if s.Owned() {
		switch {
		case f.lease == leaseUnknown:
			return decision{step: lookAtLease}
		case f.lease == leaseAlive && !f.listed:
			return decision{step: stepAudit}
		case f.lease == leaseAlive:
			return decision{step: stepNone}
		case s.Status == schema.StatusCancelling:
			return outcome(r, f, schema.StatusCancelled)
		}
	}
	switch {
	case !f.lost:
		return decision{step: stepNone}
	case f.queue == queueUnknown:
		return decision{step: lookAtQueue}
	case f.queue == queueHas:
		return decision{step: stepNone}
	case f.queue == queueFull:
		return decision{step: stepFree}
	case f.queue == queueLost:
		return decision{step: stepRemake}
	}
	return outcome(r, f, schema.StatusFailed) // no worker can run it any more
}

// outcome ends a rollout that no job runs. After a refused or unsure write the
// rollout may have a result already, and then this result counts.
func outcome(r broker.Record[schema.State], f facts, status schema.Status) decision {
	switch {
	case f.moved && f.stored == resultUnknown:
		return decision{step: lookAtResult}
	case f.stored == resultStored:
		return finish(r, f)
	}
	return decision{step: writeOutcome, next: r.Value, status: status}
}

// finish makes the state terminal, with the stored result.
func finish(r broker.Record[schema.State], f facts) decision {
	next := concluded(r.Value, f.result)
	next.Attempt = f.result.Attempt
	return decision{step: writeFinish, next: next}
}
