package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/schema"
)

// ErrCancelled is the cause of a job's context when its trainer ended it.
var ErrCancelled = errors.New("cancelled by its trainer")

// ErrFenced is the cause of a job's context when the state record names another
// attempt. The job's further work is discarded and it must publish nothing more.
var ErrFenced = errors.New("the rollout is another attempt's by now")

// Job is one execution of a request that this worker claimed.
type Job struct {
	Request schema.Request // with its defaults filled in
	Attempt int
	Before  int // number of the attempt before it; 0: none

	by  *resolver
	ctx context.Context
	end context.CancelCauseFunc

	msg     atomic.Pointer[delivery]
	claimed atomic.Bool // the state names this job

	mu     sync.Mutex                  // locked while the state record is written, which may take as long as an outage
	record broker.Record[schema.State] // as this job wrote or read it last
}

// newJob registers a job before its state record is written, so that the rollout
// counts as running here. It returns nil if this worker has a job of the rollout
// already.
func (v *resolver) newJob(req *schema.Request, d *delivery) *Job {
	j := &Job{Request: *req, by: v}
	j.msg.Store(d)
	j.ctx, j.end = context.WithCancelCause(context.Background())
	if !v.jobs.add(j) {
		j.end(nil)
		return nil
	}
	return j
}

// forget ends the job's context and removes the job from this worker's list.
func (j *Job) forget() {
	j.end(nil)
	j.by.jobs.remove(j)
}

// begin records the claimed state in the job. From now on the worker verifies
// the job against its state record.
func (j *Job) begin(r broker.Record[schema.State]) *Job {
	j.mu.Lock()
	j.record, j.Attempt = r, r.Value.Attempt
	j.mu.Unlock()
	j.claimed.Store(true)
	if r.Value.Status == schema.StatusCancelling {
		j.end(ErrCancelled)
	}
	j.by.jobs.began(j)
	j.by.cfg.Metrics.AttemptBegan(j.Attempt)
	crash.Here("claim.after")
	return j
}

// adopt replaces the handle of the job's message if d is newer.
func (j *Job) adopt(d *delivery) {
	if old := j.msg.Load(); d.received.After(old.received) {
		j.msg.CompareAndSwap(old, d)
	}
}

// Context ends with ErrCancelled or ErrFenced when the job must stop.
func (j *Job) Context() context.Context { return j.ctx }

// Suspended reports whether the job must pause, since the worker does not know
// whether it still owns the rollout. The channel is closed when this changes.
func (j *Job) Suspended() (suspended bool, changed <-chan struct{}) {
	return j.by.leases.suspended.get()
}

// Await waits while the job is suspended. It returns ErrFenced if the job is fenced.
func (j *Job) Await(ctx context.Context) error {
	if err := j.by.leases.suspended.wait(ctx); err != nil {
		return err
	}
	return j.Fenced()
}

// Fenced returns ErrFenced if the job is fenced; otherwise nil.
func (j *Job) Fenced() error {
	if j.fenced() {
		return ErrFenced
	}
	return nil
}

func (j *Job) fenced() bool { return errors.Is(j.cause(), ErrFenced) }

// cause returns the reason why the job must stop; nil while it may go on.
func (j *Job) cause() error { return context.Cause(j.ctx) }

// Emit publishes an event, unless the job is fenced.
func (j *Job) Emit(e *schema.Event) {
	if !j.fenced() {
		j.by.broker.Events.Emit(e)
	}
}

// Live publishes a piece of an answer to taps, unless the job is fenced.
func (j *Job) Live(id schema.ID, attempt, call int, d *schema.Delta) {
	if !j.fenced() {
		j.by.broker.Events.Live(id, attempt, call, d)
	}
}

// Done commits the result, at most once for a rollout and only if the state
// record still names this job, and then the terminal state. Then it removes the
// request from the queue and sends the trainer a hint. While the server cannot be
// reached it tries again until the context ends. ErrFenced means that nothing was
// stored.
func (j *Job) Done(ctx context.Context, r schema.Result) error {
	return j.ended(telemetry.EndResult, j.commit(ctx, r))
}

// ended records the end of the attempt and returns err.
func (j *Job) ended(end telemetry.End, err error) error {
	switch {
	case errors.Is(err, ErrFenced):
		end = telemetry.EndFenced
	case err != nil:
		end = telemetry.EndUntold
	}
	j.by.cfg.Metrics.AttemptEnded(end)
	return err
}

func (j *Job) commit(ctx context.Context, r schema.Result) error {
	defer j.forget()
	r.V, r.Worker = schema.Version, j.by.wid
	j.mu.Lock()
	defer j.mu.Unlock()
	m := j.resolution(askCommit)
	m.result = r
	switch s, err := j.resolve(ctx, m); {
	case err != nil:
		return fmt.Errorf("commit the result of %s: %w", r.ID, err)
	case s == stepFence:
		j.fence("its result was refused")
		return ErrFenced
	}
	return j.finish(ctx)
}

// resolution returns a resolution for this job. The caller holds j.mu.
func (j *Job) resolution(why ask) *resolution {
	m := j.by.about(j.Request.ID, why)
	m.own, m.req, m.attempt, m.maxAttempts = j, &j.Request, j.Attempt, j.Request.MaxAttempts
	m.record, m.known = j.record, true
	return m
}

// resolve is resolver.resolve for a resolution of this job. It keeps the state. The
// caller holds j.mu.
func (j *Job) resolve(ctx context.Context, m *resolution) (step, error) {
	s, err := j.by.resolve(ctx, m)
	if err == nil && s != stepFence {
		j.record = m.record
	}
	if err == nil && m.ask != askOwned {
		j.by.jobs.ended(j)
	}
	return s, err
}

// Cancelled turns a result into that of a cancelled rollout, without rewards. Done
// adds the reason that the trainer gave.
func Cancelled(r schema.Result) schema.Result { return cancelled(r, cancelFault("")) }

func cancelled(r schema.Result, fault *schema.Fault) schema.Result {
	r.Status, r.Reward, r.Rewards, r.Fault = schema.StatusCancelled, nil, nil, fault
	return r
}

// cancelFault returns the fault of a rollout that its trainer cancelled. The reason
// may be empty.
func cancelFault(reason string) *schema.Fault {
	text := "cancelled by its trainer"
	if reason != "" {
		text += ": " + reason
	}
	return schema.Faultf("rollout", schema.CodeCancelled, schema.WhoTrainer, "%s", text)
}

func (j *Job) fence(why string) {
	if !j.fenced() {
		j.by.log.Warn().Str("rollout", string(j.Request.ID)).Int("attempt", j.Attempt).Str("why", why).Msg("fenced")
	}
	j.end(ErrFenced)
}

// finish removes the request from the queue and sends the hint. The result is
// committed before, so a failure here only causes one more delivery.
func (j *Job) finish(ctx context.Context) error {
	if err := j.msg.Load().done(ctx); err != nil {
		j.by.log.Warn().Err(err).Str("rollout", string(j.Request.ID)).Msg("a finished request comes back once more")
	}
	crash.Here("commit.acked")
	j.by.hint(j.Request.ID)
	crash.Here("commit.hinted")
	return nil
}

// Return puts the rollout back into the queue after a failure of the worker. With
// giveBack, because the worker stops, the try is not counted. If no tries are
// left, the rollout ends as dead with the fault.
func (j *Job) Return(ctx context.Context, fault *schema.Fault, giveBack bool, delay time.Duration) error {
	end := telemetry.EndBroken
	if giveBack {
		end = telemetry.EndReturned
	}
	return j.ended(end, j.putBack(ctx, fault, giveBack, delay))
}

func (j *Job) putBack(ctx context.Context, fault *schema.Fault, giveBack bool, delay time.Duration) error {
	defer j.forget()
	crash.Here("return.before")
	j.mu.Lock()
	defer j.mu.Unlock()
	m := j.resolution(askReturn)
	m.fault, m.spend, m.result = fault, !giveBack, j.verdict(schema.StatusDead, fault)
	m.result.V, m.result.Worker = schema.Version, j.by.wid
	switch s, err := j.resolve(ctx, m); {
	case err != nil:
		return fmt.Errorf("put %s back: %w", j.Request.ID, err)
	case s == stepFence:
		j.fence("its return was refused")
		return ErrFenced
	}
	crash.Here("return.after")
	if j.record.Value.Status.Terminal() { // it has been cancelled, or has no tries left
		return j.finish(ctx)
	}
	return j.msg.Load().nak(delay)
}

// verdict returns the result of a rollout that this worker ends early.
func (j *Job) verdict(status schema.Status, fault *schema.Fault) schema.Result {
	return verdict(&j.Request, j.Attempt, status, fault)
}

func verdict(q *schema.Request, attempt int, status schema.Status, fault *schema.Fault) schema.Result {
	return schema.Result{
		V: schema.Version, ID: q.ID, Trainer: q.Trainer, Group: q.Group, Index: q.Index, Task: q.Task.Name,
		Attempt: attempt, Status: status, Fault: fault, Labels: q.Labels,
	}
}

// Abandon drops a fenced job without writing or publishing anything.
func (j *Job) Abandon() {
	j.by.cfg.Metrics.AttemptEnded(telemetry.EndFenced)
	j.by.jobs.ended(j)
	j.forget()
}

// CopyBundle writes the bundle of the job's task to a writer, see
// broker.Objects.CopyBundle.
func (j *Job) CopyBundle(ctx context.Context, sha string, to io.Writer) error {
	return j.by.broker.Objects.CopyBundle(ctx, j.Request.ID.Trainer(), sha, to)
}

// KeepArtifact stores a file of the job, see broker.Objects.PutArtifact. The file is
// kept at least as long as the rollout.
func (j *Job) KeepArtifact(ctx context.Context, name string, file broker.File) (schema.Artifact, error) {
	return j.by.broker.Objects.PutArtifact(ctx, j.Request.ID.Trainer(), name, file, j.by.cfg.Retention)
}
