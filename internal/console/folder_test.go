package console_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// The trials of a folder's jobs are shown when their job begins, and again with results.
func TestAFolderIsFollowed(t *testing.T) {
	dir := t.TempDir()
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Attempts: 2}
	harness.Must(t, p.AddTask("local", jobs.Task{Dir: "/tasks/hello", Name: "hello"}))
	j, err := jobs.Create(filepath.Join(dir, "one"), p)
	harness.Must(t, err)
	defer j.Close()

	source := &console.Folder{Dir: dir}
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan *recorded.Rollout, 100)
	var following sync.WaitGroup
	following.Go(func() {
		source.Follow(ctx, func(r *recorded.Rollout) { seen <- r }, func(err error) { t.Error(err) })
	})
	defer following.Wait()
	defer stop()
	for range 2 {
		if r := <-seen; r.Result != nil || r.Trial.Task != "hello" {
			t.Errorf("got %+v", r)
		}
	}
	one := p.Trials[1]
	reward := 0.5
	harness.Must(t, j.Put(t.Context(), schema.Result{V: schema.Version, ID: one.Rollout, Trainer: "local", Status: schema.StatusDone, Reward: &reward}, nil))
	harness.Must(t, j.Tell(true))
	if r := <-seen; r.ID != one.Rollout || r.Result == nil || *r.Result.Reward != reward {
		t.Errorf("got %+v", r)
	}
	if r, err := source.Rollout(t.Context(), one.Rollout); err != nil || r.Result == nil {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := source.Rollout(t.Context(), "local-none"); err == nil {
		t.Error("a rollout that is not there was found")
	}
}
