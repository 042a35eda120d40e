package jobs

import (
	"context"
	"errors"
	"slices"
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
	// Again is Result for a trial that runs again, as the rollout next.
	Again(r *schema.Result, next schema.ID)
	// Moved is called when the trial of a rollout that has not begun runs as another one.
	Moved(from, to schema.ID)
	// Paused is called when a pause of the job begins or ends.
	Paused(on bool)
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
	// Retries selects the faults after which a trial runs again. Its earlier results are
	// kept below the job's folder; see Trial.RetriedDir. Limits end retries, too.
	Retries Retries
	// RerunBelow is the reward from which on a result is final, whatever its fault; see
	// Keeps.
	RerunBelow *float64
}

// savers is the number of results that are written concurrently.
const savers = 4

type runner struct {
	*Work
	Options
	feed    *feed // the Progress of Options
	trainer *trainer.Trainer
	inner   context.Context
	fail    context.CancelCauseFunc
	// quit ends open answers.
	quit context.Context

	spent     *spending
	submits   sync.WaitGroup // submissions that go on
	submitted chan struct{}  // closed when the first one has ended
	later     sync.WaitGroup // goroutines that submit trials later
	// enough makes collect return.
	enough context.CancelFunc

	halting sync.Mutex // held while the limits are checked, and while a pause begins or ends
	mu      sync.Mutex
	waiting map[schema.ID]bool // rollouts that have no result yet
	limit   *LimitError        // for which no rollout begins any more
	paused  bool
	held    map[string]schema.ID // trials that begin after the pause, with their last rollouts
	// submitting is the context of submissions, which endSubmit ends.
	submitting context.Context
	endSubmit  context.CancelFunc
}

// silent is the Progress of a run without one.
type silent struct{}

func (silent) Event(schema.Event)    {}
func (silent) Call(schema.ID)        {}
func (silent) Result(*schema.Result) {}

func (silent) Again(*schema.Result, schema.ID) {}
func (silent) Moved(schema.ID, schema.ID)      {}
func (silent) Paused(bool)                     {}

// Run runs the trials until each has a result. The trainer has the name in Rules and
// serves no other rollouts meanwhile. The error is the context's cause, the first error
// of the job's folder or of the server, a *LimitError, or ErrCancelled. Other processes
// change the run with Control.
func (w *Work) Run(ctx context.Context, t *trainer.Trainer, o Options) error {
	if o.Progress == nil {
		o.Progress = silent{}
	}
	err := w.run(ctx, t, o)
	if err != nil {
		err = errors.Join(err, w.Job.SetStopped(err))
	}
	if terr := w.Job.WriteResult(true); err == nil {
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
	retried, err := w.Job.retried()
	if err != nil {
		return err
	}
	collecting, enough := context.WithCancel(inner)
	defer enough()
	told := newFeed(w, o.Progress)
	o.Progress = told
	r := &runner{
		Work: w, Options: o, feed: told, trainer: t, inner: inner, fail: fail, quit: quit, spent: newSpending(o.Limits, slices.Concat(w.Job.Results(), retried)),
		submitted: make(chan struct{}), enough: enough, waiting: map[schema.ID]bool{}, held: map[string]schema.ID{},
	}
	r.submitting, r.endSubmit = context.WithCancel(inner)
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
	r.submits.Add(1)
	submitting := r.submitting
	bg.Go(func() {
		defer close(r.submitted)
		defer r.submits.Done()
		if r.spent.over() == nil {
			r.first(submitting)
		}
	})
	r.checkLimits()
	unlisten, err := r.listen()
	if err != nil { // a file system without sockets
		w.Job.Logf("another process cannot pause or cancel the job: %v", err)
		unlisten = func() {}
	}
	err = r.collect(inner, collecting)
	if cause := context.Cause(inner); cause != nil {
		err = cause
	} else if collecting.Err() != nil {
		err = nil
	}
	unlisten()
	if o.Remote && (ctx.Err() != nil || errors.Is(err, ErrCancelled)) {
		// Before the open answers end: otherwise the agents would see their faults.
		err = errors.Join(err, r.stop())
	}
	end()
	fail(nil)
	leave()
	bg.Wait()
	r.later.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSubmit()
	if err == nil && r.limit != nil && len(r.Job.Missing()) > 0 {
		return r.limit
	}
	return err
}

// stop cancels the rollouts without a result.
func (r *runner) stop() error {
	stopped, err := r.Job.Stop(true)
	return errors.Join(err, r.trainer.Cancel(rolloutsOf(stopped), interrupted))
}

func rolloutsOf(trials []Trial) []schema.ID {
	var out []schema.ID
	for _, t := range trials {
		out = append(out, t.Rollout)
	}
	return out
}

const interrupted = "interrupted"

// checkLimits cancels the rollouts that have not begun if a limit is reached.
func (r *runner) checkLimits() {
	r.halting.Lock()
	defer r.halting.Unlock()
	over := r.spent.over()
	r.mu.Lock()
	if over == nil || r.limit != nil {
		r.mu.Unlock()
		return
	}
	r.limit = over
	r.mu.Unlock()
	r.halt(over.Reason)
}

// halt cancels the rollouts that have not begun. The caller holds r.halting, and has set
// r.limit or r.paused.
func (r *runner) halt(reason string) {
	r.mu.Lock()
	endSubmit := r.endSubmit
	r.mu.Unlock()
	endSubmit()
	r.submits.Wait() // a request that is sent later would run
	r.mu.Lock()
	defer r.mu.Unlock()
	stopped, err := r.Job.Stop(false)
	if err = errors.Join(err, r.trainer.Cancel(rolloutsOf(stopped), reason)); err != nil {
		r.fail(err)
	}
	r.Job.Logf("%s; %d trials have not begun", reason, len(stopped))
	for _, t := range stopped {
		r.hold(t)
	}
	r.endIfOver()
}

// hold makes a trial one that begins after the pause. The caller holds r.mu.
func (r *runner) hold(t Trial) {
	delete(r.waiting, t.Rollout)
	r.held[t.Name] = t.Rollout
}

// endIfOver makes collect return if no result is to come. The caller holds r.mu.
func (r *runner) endIfOver() {
	if len(r.waiting) == 0 && (r.limit != nil || !r.paused || len(r.held) == 0) {
		r.enough()
	}
}

// waits reports whether results are to come.
func (r *runner) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting) > 0 || r.paused && r.limit == nil && len(r.held) > 0
}

// takes reports whether the result of a rollout is to be kept. It is not if the rollout
// was cancelled because of a limit. If the trial runs again, next is the trial with the new
// rollout.
func (r *runner) takes(res *schema.Result) (next Trial, again, wanted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waiting[res.ID] {
		return Trial{}, false, false
	}
	delete(r.waiting, res.ID)
	r.begun(res.ID)
	t, _ := r.Job.Trial(res.ID)
	next, again, err := r.Retries.next(t, res, r.RerunBelow)
	if err != nil {
		r.fail(err)
	}
	if again {
		r.waiting[next.Rollout] = true
		r.answers[next.Rollout] = r.answers[res.ID]
	}
	return next, again, true
}

// answerer returns the answerer of the calls of a rollout, which has begun by its call; nil:
// they are not answered.
func (r *runner) answerer(id schema.ID) trainer.Answerer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waiting[id] {
		return nil
	}
	r.begun(id)
	return r.answers[id]
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
		next, again, wanted := r.takes(&res)
		if !wanted {
			continue
		}
		r.spent.result(&res)
		r.checkLimits()
		free <- struct{}{}
		saving.Go(func() {
			defer func() { <-free }()
			if err := r.keep(ctx, res, next, again); err != nil {
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

// first submits the trials with which the run begins.
func (r *runner) first(ctx context.Context) {
	if len(r.stopped) > 0 {
		if err := r.trainer.Cancel(r.stopped, interrupted); err != nil {
			r.fail(err)
			return
		}
	}
	send := r.trainer.Submit
	if r.adopt {
		send = r.trainer.Adopt
	}
	r.submit(ctx, r.groups, send)
}

// submit sends requests. It is no error if endSubmit ends that.
func (r *runner) submit(ctx context.Context, groups []group, send func(context.Context, []schema.Request) error) {
	if err := r.send(ctx, groups, send); err != nil && (ctx.Err() == nil || r.inner.Err() != nil) {
		r.fail(err)
	}
}

// again submits a trial after its rollout has ended, unless no rollout begins any more.
func (r *runner) again(ctx context.Context, t Trial) {
	select {
	case <-r.submitted:
	case <-ctx.Done():
		return
	}
	r.mu.Lock()
	if r.limit != nil || r.paused {
		r.hold(t)
		r.endIfOver()
		r.mu.Unlock()
		return
	}
	r.submits.Add(1)
	submitting := r.submitting
	r.mu.Unlock()
	defer r.submits.Done()
	r.submit(submitting, r.groupsOf([]Trial{t}), r.trainer.Submit)
}

// send uploads the tasks' files and puts the requests on the queue.
func (r *runner) send(ctx context.Context, groups []group, send func(context.Context, []schema.Request) error) error {
	for _, g := range groups {
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
	answer := r.answerer(key.Rollout)
	if answer == nil {
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

// keep stores a result in the job's folder. If again is true, the trial then runs as next.
func (r *runner) keep(ctx context.Context, res schema.Result, next Trial, again bool) error {
	if err := r.Job.Put(ctx, res, r.trainer.CopyArtifact); err != nil {
		return err
	}
	if !again {
		r.Progress.Result(&res)
		return r.Job.WriteResult(false)
	}
	if err := r.Job.retry(next); err != nil {
		return err
	}
	r.Job.Logf("%s runs again: rollout %s", next.Name, next.Rollout)
	r.Progress.Again(&res, next.Rollout)
	r.later.Go(func() { r.again(ctx, next) })
	return r.Job.WriteResult(false)
}
