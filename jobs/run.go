package jobs

import (
	"context"
	"errors"
	"sync"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// Progress receives the events of the rollouts of a run. Its methods are safe for
// concurrent use.
type Progress interface {
	Event(e schema.Event)
	Call(id schema.ID) // a call was answered
	Result(r *schema.Result)
}

// Options are settings of a run that do not change its results.
type Options struct {
	Progress Progress // nil: none
	// Remote means that the rollouts run in other processes and would go on when
	// this one ends. If the context of Run ends, they are cancelled, and their
	// trials get new rollouts for the next run of the job.
	Remote bool
	// Limits end the run with a *LimitError when no more rollouts may begin and all
	// that had begun have a result. The calls that this process answers count at once,
	// other calls with the result of their rollout.
	Limits Limits
}

// savers is the number of results that are written concurrently.
const savers = 4

type runner struct {
	*Work
	Options
	trainer *trainer.Trainer
	fail    context.CancelCauseFunc
	// quit ends open answers.
	quit context.Context

	spent     *spending
	submitted chan struct{} // closed when no more requests are sent
	// endSubmit makes submit return.
	endSubmit context.CancelFunc
	// enough makes collect return.
	enough context.CancelFunc

	halting sync.Mutex // held while the limits are checked
	mu      sync.Mutex
	waiting map[schema.ID]bool // rollouts whose results are to come
	limit   *LimitError        // for which no rollout begins any more
}

// silent is the Progress of a run without one.
type silent struct{}

func (silent) Event(schema.Event)    {}
func (silent) Call(schema.ID)        {}
func (silent) Result(*schema.Result) {}

// Run runs the trials until each has a result. The trainer has the name in Rules and
// serves no other rollouts meanwhile. The error is the context's cause, the first error
// of the job's folder or of the server, or a *LimitError.
func (w *Work) Run(ctx context.Context, t *trainer.Trainer, o Options) error {
	if o.Progress == nil {
		o.Progress = silent{}
	}
	err := w.run(ctx, t, o)
	if terr := w.Job.Tell(true); err == nil {
		err = terr
	}
	return err
}

func (w *Work) run(ctx context.Context, t *trainer.Trainer, o Options) error {
	inner, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	quit, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	if err := w.Job.goOn(); err != nil {
		return err
	}
	submitting, endSubmit := context.WithCancel(inner)
	defer endSubmit()
	collecting, enough := context.WithCancel(inner)
	defer enough()
	r := &runner{
		Work: w, Options: o, trainer: t, fail: fail, quit: quit, spent: newSpending(o.Limits, w.Job.Results()),
		submitted: make(chan struct{}), endSubmit: endSubmit, enough: enough, waiting: map[schema.ID]bool{},
	}
	for id := range w.names {
		r.waiting[id] = true
	}
	unwatch, err := t.Watch(func(e schema.Event) {
		if e.Phase != nil {
			r.begun(e.Rollout)
		}
		o.Progress.Event(e)
	})
	if err != nil {
		return err
	}
	defer unwatch()
	serving, end := context.WithCancel(inner)
	defer end()
	var bg sync.WaitGroup
	bg.Go(func() { _ = t.Serve(serving, r.answer) }) // returns only when its context ends
	bg.Go(func() {
		defer close(r.submitted)
		if r.spent.over() != nil {
			return
		}
		if err := r.submit(submitting); err != nil && (submitting.Err() == nil || inner.Err() != nil) {
			fail(err)
		}
	})
	r.checkLimits()
	err = r.collect(inner, collecting)
	if cause := context.Cause(inner); cause != nil {
		err = cause
	} else if collecting.Err() != nil {
		err = nil
	}
	if ctx.Err() != nil && o.Remote {
		// Before the open answers end: otherwise the agents would see their faults.
		err = errors.Join(err, r.stop())
	}
	end()
	fail(nil)
	leave()
	bg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.limit != nil && len(r.Job.Missing()) > 0 {
		return r.limit
	}
	return err
}

// stop cancels the rollouts without a result.
func (r *runner) stop() error {
	stopped, err := r.Job.Stop(true, "")
	return errors.Join(err, r.trainer.Cancel(stopped, interrupted))
}

const interrupted = "interrupted"

// checkLimits cancels the rollouts that have not begun if a limit is reached.
func (r *runner) checkLimits() {
	r.halting.Lock()
	defer r.halting.Unlock()
	over := r.spent.over()
	if over == nil || r.limit != nil {
		return
	}
	r.endSubmit()
	<-r.submitted // a request that is sent later would run
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit = over
	stopped, err := r.Job.Stop(false, over.Reason)
	if err = errors.Join(err, r.trainer.Cancel(stopped, over.Reason)); err != nil {
		r.fail(err)
	}
	r.Job.Logf("%s; %d trials have not begun", over.Reason, len(stopped))
	for _, id := range stopped {
		delete(r.waiting, id)
	}
	if len(r.waiting) == 0 {
		r.enough()
	}
}

// waits reports whether results are to come.
func (r *runner) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting) > 0
}

// takes reports whether the result of a rollout is to be kept. It is not if the rollout
// was cancelled because of a limit.
func (r *runner) takes(id schema.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waiting[id] {
		return false
	}
	delete(r.waiting, id)
	r.begun(id)
	return true
}

// calls reports whether a call of a rollout, which has begun by it, is to be answered.
func (r *runner) calls(id schema.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[id] {
		r.begun(id)
	}
	return r.waiting[id]
}

// collect stores a result of every rollout, and waits for no more of them when the
// context waiting ends.
func (r *runner) collect(ctx, waiting context.Context) error {
	var saving sync.WaitGroup
	defer saving.Wait()
	free := make(chan struct{}, savers)
	for r.waits() {
		res, err := r.trainer.NextResult(waiting)
		if err != nil {
			return err
		}
		if !r.takes(res.ID) {
			continue
		}
		r.spent.result(&res)
		r.checkLimits()
		free <- struct{}{}
		saving.Go(func() {
			defer func() { <-free }()
			if err := r.keep(ctx, res); err != nil {
				r.fail(err)
			}
		})
	}
	return nil
}

func (r *runner) begun(id schema.ID) {
	if err := r.Job.Begin(id); err != nil {
		r.fail(err)
	}
}

// submit uploads the tasks' files and puts the requests on the queue.
func (r *runner) submit(ctx context.Context) error {
	if len(r.stopped) > 0 {
		if err := r.trainer.Cancel(r.stopped, interrupted); err != nil {
			return err
		}
	}
	send := r.trainer.Submit
	if r.adopt {
		send = r.trainer.Adopt
	}
	for _, g := range r.groups {
		if len(g.bundle) > 0 {
			sha, err := r.trainer.PutBundle(ctx, g.bundle)
			if err != nil {
				return err
			}
			for i := range g.requests {
				g.requests[i].Task.Bundle = sha
			}
		}
		if err := send(ctx, g.requests); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) answer(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
	key, err := schema.ParseKey(c.Key)
	if err != nil {
		return nil, err
	}
	answer := r.answers[key.Rollout]
	if answer == nil || !r.calls(key.Rollout) {
		return nil, errors.New("this process waits for no result of that rollout")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.quit, cancel)()
	reply, err := answer(ctx, c)
	if err == nil {
		r.Progress.Call(key.Rollout)
		r.spent.call(key.Rollout, &reply.Usage)
		r.checkLimits()
	}
	return reply, err
}

// keep stores a result in the job's folder.
func (r *runner) keep(ctx context.Context, res schema.Result) error {
	if err := r.Job.Put(ctx, res, r.trainer.Artifact); err != nil {
		return err
	}
	r.Progress.Result(&res)
	return r.Job.Tell(false)
}
