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
}

// silent is the Progress of a run without one.
type silent struct{}

func (silent) Event(schema.Event)    {}
func (silent) Call(schema.ID)        {}
func (silent) Result(*schema.Result) {}

// Run runs the trials until each has a result. The trainer has the name in Rules and
// serves no other rollouts meanwhile. The error is the context's cause, or the first
// error of the job's folder or of the server.
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
	r := &runner{Work: w, Options: o, trainer: t, fail: fail, quit: quit}
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
		if err := r.submit(inner); err != nil {
			fail(err)
		}
	})
	err = r.collect(inner)
	if cause := context.Cause(inner); cause != nil {
		err = cause
	}
	if ctx.Err() != nil && o.Remote {
		// Before the open answers end: otherwise the agents would see their faults.
		err = errors.Join(err, r.stop())
	}
	end()
	fail(nil)
	leave()
	bg.Wait()
	return err
}

// stop cancels the rollouts without a result.
func (r *runner) stop() error {
	stopped, err := r.Job.Stop()
	return errors.Join(err, r.trainer.Cancel(stopped, "interrupted"))
}

// collect stores a result of every rollout.
func (r *runner) collect(ctx context.Context) error {
	var saving sync.WaitGroup
	defer saving.Wait()
	free := make(chan struct{}, savers)
	for range r.names {
		res, err := r.trainer.NextResult(ctx)
		if err != nil {
			return err
		}
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
		if err := r.trainer.Cancel(r.stopped, "interrupted"); err != nil {
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
	if answer == nil {
		return nil, errors.New("this process did not submit that rollout")
	}
	r.begun(key.Rollout)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.quit, cancel)()
	reply, err := answer(ctx, c)
	if err == nil {
		r.Progress.Call(key.Rollout)
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
