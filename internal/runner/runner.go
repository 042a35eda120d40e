// Package runner runs the trials of a job: it submits their rollouts, answers
// the model calls, and stores the results.
package runner

import (
	"context"
	"errors"
	"sync"

	"github.com/turngate/turngate/internal/rollouts"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks/job"
	"github.com/turngate/turngate/trainer"
)

// Group has the rollouts of one task.
type Group struct {
	Bundle   []byte // the task's files; empty: none
	Requests []schema.Request
}

// Progress receives the events of the rollouts of a run. Its methods are safe for
// concurrent use.
type Progress interface {
	Event(e schema.Event)
	Call(id schema.ID) // a call was answered
	Result(r *schema.Result)
}

// Config describes one run of a job.
type Config struct {
	Trainer  *trainer.Trainer
	Job      *job.Job
	Progress Progress
	Groups   []Group
	Answers  map[schema.ID]trainer.Answerer
	// Stopped are earlier rollouts of the same trials, which are cancelled first:
	// the process that stopped them may have ended before its cancel arrived.
	Stopped []schema.ID
	// Adopt means that an earlier process may have submitted the rollouts.
	Adopt bool
	// Remote means that the rollouts run in other processes and would go on when
	// this one ends. If the context of Run ends, they are cancelled, and their
	// trials get new rollouts for the next run of the job.
	Remote bool
}

// savers is the number of results that are written concurrently.
const savers = 4

type runner struct {
	Config
	fail context.CancelCauseFunc
	// quit ends open answers.
	quit context.Context
}

// Run runs the rollouts until the job has a result of each. The error is the
// context's cause, or the first error of the job's folder or of the server.
func Run(ctx context.Context, c Config) error {
	inner, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	quit, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	r := &runner{Config: c, fail: fail, quit: quit}
	unwatch, err := c.Trainer.Watch(func(e schema.Event) {
		if e.Phase != nil {
			r.begun(e.Rollout)
		}
		c.Progress.Event(e)
	})
	if err != nil {
		return err
	}
	defer unwatch()
	serving, end := context.WithCancel(inner)
	defer end()
	var bg sync.WaitGroup
	bg.Go(func() { _ = c.Trainer.Serve(serving, r.answer) }) // returns only when its context ends
	bg.Go(func() {
		if err := r.submit(inner); err != nil {
			fail(err)
		}
	})
	err = r.collect(inner)
	if cause := context.Cause(inner); cause != nil {
		err = cause
	}
	if ctx.Err() != nil && c.Remote {
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
	return errors.Join(err, r.Trainer.Cancel(stopped, "interrupted"))
}

// collect stores a result of every rollout.
func (r *runner) collect(ctx context.Context) error {
	var saving sync.WaitGroup
	defer saving.Wait()
	free := make(chan struct{}, savers)
	for _, g := range r.Groups {
		for range g.Requests {
			res, err := r.Trainer.NextResult(ctx)
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
	if len(r.Stopped) > 0 {
		if err := r.Trainer.Cancel(r.Stopped, "interrupted"); err != nil {
			return err
		}
	}
	send := r.Trainer.Submit
	if r.Adopt {
		send = r.Trainer.Adopt
	}
	for _, g := range r.Groups {
		if len(g.Bundle) > 0 {
			sha, err := r.Trainer.PutBundle(ctx, g.Bundle)
			if err != nil {
				return err
			}
			for i := range g.Requests {
				g.Requests[i].Task.Bundle = sha
			}
		}
		if err := send(ctx, g.Requests); err != nil {
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
	answer := r.Answers[key.Rollout]
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
	if err := r.Job.Put(ctx, res, r.Trainer.Artifact, rollouts.Trajectory); err != nil {
		return err
	}
	r.Progress.Result(&res)
	return r.Job.Tell(false)
}
