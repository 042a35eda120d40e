package console_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// A running job has the rollouts of its folder, with the states of the system. One that runs
// again takes the place of the old one.
func TestAJobThatRunsIsFollowed(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	worker := n.Worker(t, "w1")
	n.Trainer(t, "alpha")
	put := func(id schema.ID, status schema.Status, expect uint64) uint64 {
		t.Helper()
		seq, err := worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: "alpha", Status: status, Attempt: 1}, expect)
		harness.Must(t, err)
		return seq
	}
	dir := filepath.Join(t.TempDir(), "one")
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Attempts: 2}
	harness.Must(t, p.AddTask("alpha", jobs.Task{Dir: "/tasks/hello", Name: "hello"}))
	j, err := jobs.Create(dir, p)
	harness.Must(t, err)
	defer j.Close()
	first := p.Trials[0].Rollout
	seq := put(first, schema.StatusRunning, 0)
	put("alpha-other", schema.StatusRunning, 0)

	source := &console.Job{Folder: &console.Folder{Dir: dir}, Bus: &console.Bus{System: recorded.On(n.Trainer(t, "alpha")), Trainer: "alpha"}}
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan *recorded.Rollout, 100)
	var following sync.WaitGroup
	following.Go(func() {
		source.Follow(ctx, func(r *recorded.Rollout) { seen <- r }, func(err error) {
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	})
	defer following.Wait()
	defer stop()
	until := func(id schema.ID, what string, is func(*recorded.Rollout) bool) {
		t.Helper()
		for r := range seen {
			if r.ID == "alpha-other" {
				t.Error("a rollout of no trial was shown")
			}
			if r.Trial == nil || r.Plan == nil {
				t.Errorf("got %+v", r)
			}
			if r.ID == id && is(r) {
				return
			}
		}
		t.Errorf("no %s", what)
	}
	until(first, "running trial", func(r *recorded.Rollout) bool { return r.State != nil && r.State.Status == schema.StatusRunning })
	if r, err := source.Rollout(t.Context(), first); err != nil || r.State == nil || r.Trial == nil {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := source.Rollout(t.Context(), p.Trials[1].Rollout); err != nil || r.State != nil || r.Trial == nil {
		t.Errorf("got %+v, %v", r, err)
	}
	fault := &schema.Fault{Code: "internal", Message: "test"}
	harness.Must(t, j.Put(t.Context(), schema.Result{V: schema.Version, ID: first, Trainer: "alpha", Status: schema.StatusFailed, Fault: fault}, nil))
	harness.Must(t, j.WriteResult(true))
	until(first, "ended trial", func(r *recorded.Rollout) bool { return r.Result != nil && r.State == nil })

	again, err := p.Trials[0].Next()
	harness.Must(t, err)
	harness.Must(t, j.Rerun([]jobs.Trial{again}))
	until(again.Rollout, "trial that runs again", func(r *recorded.Rollout) bool { return len(r.Trial.Stopped) == 1 && r.Trial.Stopped[0] == first })
	put(first, schema.StatusFailed, seq)
	put(again.Rollout, schema.StatusRunning, 0)
	until(again.Rollout, "running trial", func(r *recorded.Rollout) bool {
		return r.State != nil && r.State.Status == schema.StatusRunning
	})
}

// The row of a rollout that runs again takes the place of the old one, in the server and
// in browsers.
func TestARerunReplacesItsRow(t *testing.T) {
	s := serve(t)
	c := s.browser(t)
	trial := func(n int, stopped ...schema.ID) *recorded.Rollout {
		r := running(n)
		r.Plan, r.Trial = &jobs.Plan{Name: "j"}, &jobs.Trial{Name: "t", Stopped: stopped}
		return r
	}
	events, stop := s.feed(t, c, "/api/rollouts", "")
	<-events // begin
	<-events // trouble
	s.show(trial(1))
	old := rows(t, <-events)
	s.show(trial(2, "alpha-0001"))
	if list := rows(t, <-events); old[0].ID != "alpha-0001" || len(list) != 1 || fmt.Sprint(list[0].Replaces) != "[alpha-0001]" {
		t.Errorf("got %+v", list)
	}
	stop()
	events, stop = s.feed(t, c, "/api/rollouts", "")
	defer stop()
	<-events // begin
	if list := rows(t, <-events); len(list) != 1 || list[0].ID != "alpha-0002" {
		t.Errorf("got %+v", list)
	}
	// A page that closed its feed names the last event in the URL.
	s.show(trial(3))
	last, stopLast := s.feed(t, c, "/api/rollouts?after="+process(t, <-events)+".2", "")
	defer stopLast()
	if list := rows(t, <-last); len(list) != 1 || list[0].ID != "alpha-0003" {
		t.Errorf("got %+v", list)
	}
}

// process returns the first part of the id of an event.
func process(t *testing.T, e event) string {
	t.Helper()
	p, _, ok := strings.Cut(e.id, ".")
	if !ok {
		t.Fatalf("got %+v", e)
	}
	return p
}
