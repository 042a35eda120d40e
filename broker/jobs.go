package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

const (
	progressEvery = 20 * time.Second // well inside ackWait
	pullFor       = 5 * time.Second
)

// Job is one execution of a request that this worker claimed.
type Job struct {
	Request schema.Request // with its defaults filled in
	Attempt int

	w        *WorkerSide
	msg      jetstream.Msg
	state    schema.State
	stateSeq uint64
}

// Take waits for a request that is this worker's to run and claims it: its
// state record says so before Take returns. Requests that cannot be run
// (unreadable, invalid, cancelled, finished) are settled on the way. It ends
// with the context's cause.
func (w *WorkerSide) Take(ctx context.Context) (*Job, error) {
	w.idle.Lock()
	defer w.idle.Unlock()
	for {
		msg, err := w.pull(ctx)
		if ctx.Err() != nil {
			if msg != nil {
				_ = msg.Nak()
			}
			return nil, context.Cause(ctx)
		}
		if err != nil {
			w.log.Warn().Err(err).Msg("no request could be pulled")
			if err := pause(ctx, time.Second); err != nil {
				return nil, err
			}
			continue
		}
		if msg == nil {
			continue
		}
		job, err := w.claim(ctx, msg)
		if err != nil {
			w.log.Warn().Err(err).Str("subject", msg.Subject()).Msg("a request could not be claimed, it goes back")
			_ = msg.NakWithDelay(time.Second)
			continue
		}
		if job != nil {
			return job, nil
		}
	}
}

// pull asks every lane at once, most urgent first, and keeps one message; nil
// when none came in time.
func (w *WorkerSide) pull(ctx context.Context) (jetstream.Msg, error) {
	if !w.bulk.IsConnected() { // a pull made now would leak its subscription
		return nil, pause(ctx, 250*time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(ctx, pullFor)
	defer cancel()
	filters := subjects.RequestFilters()
	slices.Sort(filters) // the plain lane, p0, p1, p2, p3
	got := make([]jetstream.Msg, len(filters))
	errs := make([]error, len(filters))
	var wg sync.WaitGroup
	for i, filter := range filters {
		wg.Go(func() {
			got[i], errs[i] = w.pullLane(ctx, subjects.ConsumerOf(filter))
			if got[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var msg jetstream.Msg
	for _, m := range got {
		switch {
		case m == nil:
		case msg == nil:
			msg = m
		default:
			_ = m.Nak() // two lanes answered at once; this one is for somebody else
		}
	}
	if msg != nil {
		return msg, nil
	}
	return nil, errors.Join(errs...)
}

func (w *WorkerSide) pullLane(ctx context.Context, consumer string) (jetstream.Msg, error) {
	c, err := w.js.Consumer(ctx, subjects.StreamRequests, consumer)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil
		}
		return nil, fmt.Errorf("open consumer %s: %w", consumer, err)
	}
	batch, err := c.Fetch(1, jetstream.FetchContext(ctx))
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil
		}
		return nil, fmt.Errorf("pull from %s: %w", consumer, err)
	}
	var msg jetstream.Msg
	for m := range batch.Messages() {
		msg = m
	}
	return msg, nil
}

// claim makes the message this worker's job, or settles it and returns nil.
func (w *WorkerSide) claim(ctx context.Context, msg jetstream.Msg) (*Job, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("read the message's metadata: %w", err)
	}
	req, err := w.read(ctx, msg)
	if err != nil || req == nil {
		return nil, err
	}
	if req.DelayMS > 0 && meta.NumDelivered == 1 {
		return nil, msg.NakWithDelay(time.Duration(req.DelayMS) * time.Millisecond)
	}
	j := &Job{Request: *req, w: w, msg: msg}
	var found bool
	j.stateSeq, found, err = w.last(ctx, subjects.State(req.ID), &j.state)
	if err != nil {
		return nil, err
	}
	if !found {
		j.state = schema.State{V: schema.Version, ID: req.ID, Trainer: req.Trainer, Status: schema.StatusQueued}
	}
	if _, err := w.Result(ctx, req.ID); err == nil || j.state.Status.Terminal() {
		return nil, msg.DoubleAck(ctx) // a duplicate, or an ack that was lost
	} else if !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if w.cancelled(req.ID) {
		return nil, j.finish(ctx, schema.StatusCancelled, schema.Faultf("queue", schema.CodeCancelled, schema.WhoTrainer, "cancelled before it started"))
	}
	if j.state.Tries >= req.MaxAttempts {
		fault := j.state.Fault
		if fault == nil {
			fault = schema.Faultf("queue", schema.CodeInternal, schema.WhoWorker, "its worker ended without a word")
		}
		return nil, j.finish(ctx, schema.StatusDead, fault)
	}
	j.Attempt = max(j.state.Attempt, req.AttemptFloor) + 1
	j.state.Status, j.state.Attempt, j.state.Tries = schema.StatusRunning, j.Attempt, j.state.Tries+1
	j.state.OwnerSeq, j.state.Worker, j.state.Instance, j.state.Since = meta.Sequence.Stream, w.wid, w.instance, nowMS()
	j.stateSeq, err = w.put(ctx, subjects.State(req.ID), &j.state, j.stateSeq)
	if err != nil {
		return nil, err
	}
	return j, nil
}

// finish commits a result for a job that never ran.
func (j *Job) finish(ctx context.Context, status schema.Status, fault *schema.Fault) error {
	return j.Done(ctx, schema.Result{
		ID: j.Request.ID, Trainer: j.Request.Trainer, Group: j.Request.Group, Index: j.Request.Index, Task: j.Request.Task.Name,
		Attempt: j.state.Attempt, Status: status, Fault: fault, Labels: j.Request.Labels,
	})
}

// read decodes the request. One that cannot be read goes to the DEAD stream;
// one that is readable but wrong gets a failed result that names the field.
func (w *WorkerSide) read(ctx context.Context, msg jetstream.Msg) (*schema.Request, error) {
	lane, ok := subjects.ParseRequest(msg.Subject())
	var req schema.Request
	why := schema.Decode(msg.Data(), &req)
	id, idErr := schema.ParseID(string(req.ID))
	if !ok || idErr != nil || lane != "" && lane != id.Trainer() {
		return nil, w.bury(ctx, msg, "unreadable", errors.Join(why, idErr, fmt.Errorf("it came on %s", msg.Subject())))
	}
	if why == nil {
		req = req.WithDefaults()
		return &req, nil
	}
	if shape := (*schema.ShapeError)(nil); errors.As(why, &shape) {
		return nil, w.bury(ctx, msg, "unreadable", why)
	}
	w.log.Warn().Err(why).Str("rollout", string(id)).Msg("an invalid request was refused")
	// Only what is sure to be valid goes into the result.
	j := &Job{Request: schema.Request{ID: id, Trainer: id.Trainer(), Index: req.Index}, w: w, msg: msg}
	seq, found, err := w.last(ctx, subjects.State(id), &j.state)
	if err != nil {
		return nil, err
	}
	if !found {
		j.state = schema.State{V: schema.Version, ID: id, Trainer: id.Trainer()}
	}
	j.stateSeq = seq
	return nil, j.finish(ctx, schema.StatusFailed, schema.Faultf("request", schema.CodeInvalid, schema.WhoUser, "%v", why))
}

// bury copies a message to the DEAD stream and takes it off the queue.
func (w *WorkerSide) bury(ctx context.Context, msg jetstream.Msg, reason string, why error) error {
	meta, err := msg.Metadata()
	if err != nil {
		return fmt.Errorf("read the message's metadata: %w", err)
	}
	subject := subjects.Dead(reason, fmt.Sprintf("%d", meta.Sequence.Stream))
	if _, err := w.js.Publish(ctx, subject, msg.Data(), jetstream.WithMsgID(subject)); err != nil {
		return fmt.Errorf("keep an unreadable request in %s: %w", subject, err)
	}
	w.log.Warn().Err(why).Str("kept", subject).Msg("a request could not be read")
	return msg.TermWithReason(strings.ReplaceAll(schema.Clip(why.Error(), 200), "\n", " "))
}

// Hold keeps the job this worker's until stop is called. The context it
// returns ends with ErrCancelled when the trainer cancels the rollout.
func (j *Job) Hold(ctx context.Context) (held context.Context, stop func()) {
	held, cancel := context.WithCancelCause(ctx)
	id := j.Request.ID
	j.w.mu.Lock()
	j.w.running[id] = cancel
	j.w.mu.Unlock()
	if j.w.cancelled(id) {
		cancel(ErrCancelled)
	}
	done, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if err := j.msg.InProgress(); err != nil {
					j.w.log.Warn().Err(err).Str("rollout", string(id)).Msg("progress was not told")
				}
			}
		}
	}()
	return held, sync.OnceFunc(func() {
		close(done)
		<-finished
		j.w.mu.Lock()
		delete(j.w.running, id)
		j.w.mu.Unlock()
		cancel(nil)
	})
}

// Done commits the result: at most one is ever kept for a rollout, and only
// if the state record still names this execution. Then the request leaves the
// queue and the trainer gets its hint.
func (j *Job) Done(ctx context.Context, r schema.Result) error {
	r.V, r.Worker = schema.Version, j.w.wid
	id := j.Request.ID
	if _, err := j.w.put(ctx, subjects.Result(id), &r, 0); err != nil && !errors.Is(err, errMoved) {
		return fmt.Errorf("commit the result of %s: %w", id, err)
	} else if errors.Is(err, errMoved) {
		j.w.log.Warn().Str("rollout", string(id)).Msg("the rollout has a result already; this one is dropped")
		return j.settle(ctx)
	}
	j.state.Status, j.state.Fault = r.Status, r.Fault
	if _, err := j.w.put(ctx, subjects.State(id), &j.state, j.stateSeq); err != nil {
		j.w.log.Warn().Err(err).Str("rollout", string(id)).Msg("the state was not brought to its end")
	}
	if err := j.settle(ctx); err != nil {
		return err
	}
	hint, err := schema.Encode(&schema.Hint{V: schema.Version, ID: id})
	if err != nil {
		return err
	}
	return j.w.bulk.Publish(subjects.TrainerResults(id.Trainer()), hint)
}

// settle takes the request off the queue and waits for the server's word.
func (j *Job) settle(ctx context.Context) error {
	if err := j.msg.DoubleAck(ctx); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return fmt.Errorf("take %s off the queue: %w", j.Request.ID, err)
	}
	return nil
}

// Return puts the job back after a failure of ours, or, with giveBack, because
// this worker stops; then the try does not count. When the last try failed,
// the rollout ends dead with that fault.
func (j *Job) Return(ctx context.Context, fault *schema.Fault, giveBack bool, delay time.Duration) error {
	if !giveBack && j.state.Tries >= j.Request.MaxAttempts {
		return j.finish(ctx, schema.StatusDead, fault)
	}
	j.state.Status, j.state.Fault, j.state.Worker, j.state.Instance = schema.StatusQueued, fault, "", ""
	if giveBack {
		j.state.Tries--
	}
	if _, err := j.w.put(ctx, subjects.State(j.Request.ID), &j.state, j.stateSeq); err != nil {
		return fmt.Errorf("put %s back: %w", j.Request.ID, err)
	}
	return j.msg.NakWithDelay(max(delay, time.Millisecond))
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
