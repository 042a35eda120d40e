package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// ErrCancelled is the cause of a job's context when its trainer ended it.
var ErrCancelled = errors.New("cancelled by its trainer")

// ErrFenced is the cause of a job's context when the state record names
// another attempt: whatever this one still does counts for nothing, and it may
// publish nothing more.
var ErrFenced = errors.New("the rollout is another attempt's by now")

// Job is one execution of a request that this worker claimed.
type Job struct {
	Request schema.Request // with its defaults filled in
	Attempt int

	w    *WorkerSide
	ctx  context.Context
	end  context.CancelCauseFunc
	hold *switchable // on: the worker's lease is in doubt

	msg     atomic.Pointer[delivery]
	claimed atomic.Bool // the state names this job

	mu       sync.Mutex // held while the state record is written, which may take as long as an outage
	state    schema.State
	stateSeq uint64
}

// newJob registers a job, so that its rollout counts as running here before
// its state says so. It is nil when the rollout is here already.
func (w *WorkerSide) newJob(req *schema.Request, d *delivery) *Job {
	j := &Job{Request: *req, w: w, hold: newSwitch()}
	j.msg.Store(d)
	j.ctx, j.end = context.WithCancelCause(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.jobs[req.ID] != nil {
		return nil
	}
	w.jobs[req.ID] = j
	return j
}

// forget takes the job off this worker's list.
func (j *Job) forget() {
	j.end(nil)
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	if j.w.jobs[j.Request.ID] == j {
		delete(j.w.jobs, j.Request.ID)
	}
}

func (w *WorkerSide) job(id schema.ID) *Job {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.jobs[id]
}

// Context ends with ErrCancelled or ErrFenced when the job must stop.
func (j *Job) Context() context.Context { return j.ctx }

// Held reports whether everything of this job must stand still now, since the
// worker does not know whether it is still its own. The channel is closed when
// that changes.
func (j *Job) Held() (held bool, changed <-chan struct{}) { return j.hold.get() }

func (j *Job) fenced() bool { return errors.Is(j.cause(), ErrFenced) }

// cause is why the job must stop; nil while it goes on.
func (j *Job) cause() error { return context.Cause(j.ctx) }

// Emit tells those who watch, unless the job was fenced.
func (j *Job) Emit(e *schema.Event) {
	if !j.fenced() {
		j.w.Emit(e)
	}
}

// Live shows a piece of an answer to whoever watches, unless the job was
// fenced.
func (j *Job) Live(id schema.ID, attempt, call int, d *schema.Delta) {
	if !j.fenced() {
		j.w.Live(id, attempt, call, d)
	}
}

// Done commits the result: at most once for a rollout, and only if the state is
// still this job's; then the terminal state. Then the request
// leaves the queue and the trainer gets its hint. While the server cannot be
// reached it tries again until the context ends. ErrFenced: nothing was kept.
func (j *Job) Done(ctx context.Context, r schema.Result) error {
	defer j.forget()
	r.V, r.Worker = schema.Version, j.w.wid
	if err := j.commit(ctx, r); err != nil {
		return err
	}
	return j.settle(ctx)
}

func (j *Job) commit(ctx context.Context, r schema.Result) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state.Status.Terminal() {
		return nil
	}
	crash.Here("commit.before")
	next := concluded(j.state, &r)
	seq, err := j.w.commit(ctx, next, j.stateSeq, r)
	if errors.Is(err, errMoved) {
		return j.moved(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("commit the result of %s: %w", r.ID, err)
	}
	j.state, j.stateSeq = next, seq
	crash.Here("commit.after")
	return nil
}

// moved finds out who wrote the state: this job before its answer was lost,
// somebody who cancels it, or its successor.
func (j *Job) moved(ctx context.Context, r schema.Result) error {
	now, seq, found, err := j.w.readState(ctx, r.ID)
	switch {
	case err != nil:
		return err
	case !found || !j.mine(&now):
		j.fence("its result was refused")
		return ErrFenced
	case now.Status.Terminal():
		return nil // this job's own write
	}
	switch ended, err := j.w.finish(ctx, r.ID, now, seq); {
	case errors.Is(err, errMoved):
		return j.again(ctx, r)
	case err != nil:
		return err
	case ended: // its result was stored before somebody changed the state
		return nil
	}
	if now.Status == schema.StatusCancelling {
		r = Cancelled(r)
	}
	next := concluded(now, &r)
	if seq, err = j.w.commit(ctx, next, seq, r); errors.Is(err, errMoved) {
		return j.again(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("commit the result of %s: %w", r.ID, err)
	}
	j.state, j.stateSeq = next, seq
	return nil
}

// again looks once more, a little later: a cluster refuses a write for as long
// as another one of the same record is on its way.
func (j *Job) again(ctx context.Context, r schema.Result) error {
	if err := pause(ctx, retryFirst/4); err != nil {
		return err
	}
	return j.moved(ctx, r)
}

// Cancelled makes a result say that the rollout was cancelled.
func Cancelled(r schema.Result) schema.Result {
	r.Status, r.Reward, r.Rewards = schema.StatusCancelled, nil, nil
	r.Fault = schema.Faultf("rollout", schema.CodeCancelled, schema.WhoTrainer, "cancelled by its trainer")
	return r
}

func (j *Job) mine(s *schema.State) bool {
	return s.Worker == j.w.wid && s.Instance == j.w.instance && s.Attempt == j.Attempt
}

func (j *Job) fence(why string) {
	if crash.Broken("I1") {
		return
	}
	if !j.fenced() {
		j.w.log.Warn().Str("rollout", string(j.Request.ID)).Int("attempt", j.Attempt).Str("why", why).Msg("fenced")
	}
	if !crash.Broken("I6") {
		j.end(ErrFenced)
	}
}

// settle takes the request off the queue and gives the hint. The result is
// committed by then, so that a failure only costs a delivery more.
func (j *Job) settle(ctx context.Context) error {
	if err := j.msg.Load().done(ctx); err != nil {
		j.w.log.Warn().Err(err).Str("rollout", string(j.Request.ID)).Msg("a finished request comes back once more")
	}
	crash.Here("commit.acked")
	j.w.hint(j.Request.ID)
	crash.Here("commit.hinted")
	return nil
}

// hint tells a trainer that a result is there.
func (w *WorkerSide) hint(id schema.ID) {
	data, err := schema.Encode(&schema.Hint{V: schema.Version, ID: id})
	if err == nil {
		err = w.bulk.Publish(subjects.TrainerResults(id.Trainer()), data)
	}
	if err != nil {
		w.log.Debug().Err(err).Str("rollout", string(id)).Msg("a hint was not published")
	}
}

// Return puts the job back after a failure of ours, or, with giveBack, because
// this worker stops; then the try does not count. When the last try failed,
// the rollout ends dead with that fault.
func (j *Job) Return(ctx context.Context, fault *schema.Fault, giveBack bool, delay time.Duration) error {
	if !giveBack && j.state.Tries >= j.Request.MaxAttempts {
		return j.Done(ctx, j.verdict(schema.StatusDead, fault))
	}
	defer j.forget()
	crash.Here("return.before")
	if err := j.release(ctx, fault, giveBack); err != nil {
		return err
	}
	crash.Here("return.after")
	if j.state.Status.Terminal() { // it was cancelled meanwhile
		return j.settle(ctx)
	}
	return j.msg.Load().again(delay)
}

func (j *Job) release(ctx context.Context, fault *schema.Fault, giveBack bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for try := 0; ; try++ {
		next := queued(j.state, giveBack)
		if fault != nil {
			next.Fault = fault
		}
		seq, err := j.w.put(ctx, subjects.State(j.Request.ID), &next, j.stateSeq)
		if err == nil {
			j.state, j.stateSeq = next, seq
			return nil
		}
		if refused(err) && !errors.Is(err, errMoved) && !passing(err) {
			return fmt.Errorf("put %s back: %w", j.Request.ID, err)
		}
		now, seq, found, rerr := j.w.readState(ctx, j.Request.ID)
		switch {
		case rerr != nil:
			return fmt.Errorf("put %s back: %w", j.Request.ID, errors.Join(err, rerr))
		case found && now.Status == schema.StatusQueued && now.Attempt == j.Attempt:
			j.state, j.stateSeq = now, seq // the answer was lost
			return nil
		case !found || !j.mine(&now):
			j.fence("its return was refused")
			return ErrFenced
		case now.Status.Terminal():
			j.state, j.stateSeq = now, seq
			return nil
		case now.Status == schema.StatusCancelling:
			j.state, j.stateSeq = now, seq
			r := Cancelled(j.verdict(schema.StatusCancelled, nil))
			next := concluded(now, &r)
			if seq, err = j.w.commit(ctx, next, seq, r); err == nil {
				j.state, j.stateSeq = next, seq
				return nil
			}
		default:
			j.stateSeq = seq
		}
		if err := pause(ctx, backoff(try)); err != nil {
			return err
		}
	}
}

// queued is the state of a rollout that goes back to the queue.
func queued(s schema.State, giveBack bool) schema.State {
	s.Status, s.Worker, s.Instance, s.Ack = schema.StatusQueued, "", "", ""
	if giveBack {
		s.Tries = max(s.Tries-1, 0)
	}
	return s
}

// verdict is the result of a rollout that this worker ends without running it
// to its end.
func (j *Job) verdict(status schema.Status, fault *schema.Fault) schema.Result {
	return verdict(&j.Request, j.Attempt, status, fault)
}

func verdict(q *schema.Request, attempt int, status schema.Status, fault *schema.Fault) schema.Result {
	return schema.Result{
		V: schema.Version, ID: q.ID, Trainer: q.Trainer, Group: q.Group, Index: q.Index, Task: q.Task.Name,
		Attempt: attempt, Status: status, Fault: fault, Labels: q.Labels,
	}
}

// Abandon drops a fenced job without a word.
func (j *Job) Abandon() { j.forget() }

// switchable is a flag that can be waited on.
type switchable struct {
	mu      sync.Mutex
	on      bool
	changed chan struct{}
}

func newSwitch() *switchable { return &switchable{changed: make(chan struct{})} }

func (s *switchable) get() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on, s.changed
}

func (s *switchable) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != on {
		s.on = on
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// wait waits until the flag is off.
func (s *switchable) wait(ctx context.Context) error {
	for {
		on, changed := s.get()
		if !on {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
