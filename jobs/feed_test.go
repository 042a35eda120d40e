package jobs_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// watching is a Watcher that keeps all reports.
type watching struct {
	mu      sync.Mutex
	trials  int
	begins  int
	names   map[schema.ID]string
	results []schema.Result // of an earlier process
	calls   map[schema.ID]int
	ended   map[schema.ID]string // names of the trials
	phases  map[schema.ID]string
	again   int
	paused  bool
	live    bool
}

func watcher() *watching {
	return &watching{calls: map[schema.ID]int{}, ended: map[schema.ID]string{}, phases: map[schema.ID]string{}}
}

func (w *watching) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *watching) Time(at time.Time) { w.do(func() { w.live = at.IsZero() }) }
func (w *watching) Begin(trials int, names map[schema.ID]string, results []schema.Result) {
	w.do(func() { w.begins, w.trials, w.names, w.results = w.begins+1, trials, names, results })
}

func (w *watching) Event(e schema.Event) {
	w.do(func() {
		if e.Phase != nil {
			w.phases[e.Rollout] = e.Phase.Name
		}
	})
}
func (w *watching) Call(id schema.ID)       { w.do(func() { w.calls[id]++ }) }
func (w *watching) Result(r *schema.Result) { w.do(func() { w.ended[r.ID] = w.names[r.ID] }) }
func (w *watching) Again(r *schema.Result, next schema.ID) {
	w.do(func() { w.again++; w.names[next] = w.names[r.ID] })
}
func (w *watching) Moved(from, to schema.ID) { w.do(func() { w.names[to] = w.names[from] }) }
func (w *watching) Paused(on bool)           { w.do(func() { w.paused = on }) }

// is waits until a condition of the watcher holds.
func (w *watching) is(t *testing.T, what string, ok func() bool) {
	t.Helper()
	harness.Eventually(t, what, 5*time.Minute, func() (yes bool) {
		w.do(func() { yes = ok() })
		return yes
	})
}

func follows(ctx context.Context, dir string, w jobs.Watcher) <-chan error {
	out := make(chan error, 1)
	go func() { out <- jobs.Follow(ctx, dir, w) }()
	return out
}

// TestAJobIsFollowed: processes that follow a job from its beginning, from the middle and
// across a pause learn the same, and the end of one changes nothing.
func TestAJobIsFollowed(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	g := newGated()
	w := begin(t, 6, g.answer)
	dir := w.Job.Dir
	var rests *jobs.NotRunningError
	if err := jobs.Follow(t.Context(), dir, watcher()); !errors.As(err, &rests) || rests.State != jobs.StateRunning {
		t.Errorf("before it runs: %v", err)
	}
	ended := runs(t.Context(), w, newTrainer(t, n), jobs.Options{})
	<-g.asked
	<-g.asked
	early, leaves := watcher(), watcher()
	following := follows(t.Context(), dir, early)
	ctx, leave := context.WithCancel(t.Context())
	left := follows(ctx, dir, leaves)
	for _, one := range []*watching{early, leaves} {
		one.is(t, "the trials that run", func() bool { return one.live && len(one.phases) == 2 })
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a follower that leaves: %v", err)
	}
	control(t, dir, jobs.ActionPause, jobs.StatePaused)
	early.is(t, "the pause", func() bool { return early.paused })
	close(g.open)
	early.is(t, "two results", func() bool { return len(early.ended) == 2 })
	late := watcher()
	followingLate := follows(t.Context(), dir, late)
	late.is(t, "the results and the pause", func() bool { return late.live && late.paused && len(late.ended) == 2 })
	control(t, dir, jobs.ActionResume, jobs.StateRunning)
	for _, err := range []error{<-ended, <-following, <-followingLate} {
		if err != nil {
			t.Error(err)
		}
	}
	for name, one := range map[string]*watching{"early": early, "late": late} {
		var trials []string
		for id, trial := range one.ended {
			trials = append(trials, trial)
			if name == "early" && one.calls[id] != 1 {
				t.Errorf("%s: %d calls of %s", name, one.calls[id], id)
			}
		}
		slices.Sort(trials)
		if one.begins != 1 || one.trials != 6 || one.paused || len(one.results) != 0 || len(slices.Compact(trials)) != 6 || trials[0] == "" {
			t.Errorf("%s: %+v", name, one)
		}
	}
	w.Job.Close()
	if err := jobs.Follow(t.Context(), dir, watcher()); !errors.As(err, &rests) || rests.State != jobs.StateEnded {
		t.Errorf("after its end: %v", err)
	}
}

// TestAResumedJobIsFollowed: a follower gets the results of the earlier process first.
func TestAResumedJobIsFollowed(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	answers := make(chan struct{}, 3)
	answer := func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		select {
		case <-answers:
			return done(ctx, c)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	w, tr := begin(t, 3, answer), newTrainer(t, n)
	dir := w.Job.Dir
	ctx, interrupt := context.WithCancel(t.Context())
	ended := runs(ctx, w, tr, jobs.Options{Remote: true})
	answers <- struct{}{}
	harness.Eventually(t, "a result", 5*time.Minute, func() bool { return len(w.Job.Results()) == 1 })
	interrupt()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	tr.Close()
	w.Job.Close()
	j, err := jobs.Open(dir)
	harness.Must(t, err)
	defer j.Close()
	again, err := jobs.Resume(t.Context(), j, rules(answer), nil)
	harness.Must(t, err)
	ended = runs(t.Context(), again, newTrainer(t, n), jobs.Options{})
	one, following := watcher(), make(chan error, 1)
	go func() {
		err := jobs.Follow(t.Context(), dir, one)
		for rests := (*jobs.NotRunningError)(nil); errors.As(err, &rests); { // it begins
			err = jobs.Follow(t.Context(), dir, one)
		}
		following <- err
	}()
	one.is(t, "the beginning", func() bool { return one.live })
	answers <- struct{}{}
	answers <- struct{}{}
	if err := errors.Join(<-ended, <-following); err != nil {
		t.Error(err)
	}
	if len(one.results) != 1 || one.results[0].Reward == nil || len(one.ended) != 2 || one.ended[one.results[0].ID] != "" {
		t.Errorf("%+v", one)
	}
}
