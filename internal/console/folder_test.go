package console_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// jobOfTwo begins a job with two trials of one task.
func jobOfTwo(t *testing.T, dir string) (jobs.Plan, *jobs.Job) {
	t.Helper()
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Attempts: 2}
	harness.Must(t, p.AddTask("local", jobs.Task{Dir: "/tasks/hello", Name: "hello"}))
	j, err := jobs.Create(dir, p)
	harness.Must(t, err)
	return p, j
}

// The trials of a folder's jobs are shown when their job begins, and again with results.
func TestAFolderIsFollowed(t *testing.T) {
	dir := t.TempDir()
	p, j := jobOfTwo(t, filepath.Join(dir, "one"))
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
	harness.Must(t, j.WriteResult(true))
	if r := <-seen; r.ID != one.Rollout || r.Result == nil || *r.Result.Reward != reward {
		t.Errorf("got %+v", r)
	}
	if r, err := source.Rollout(t.Context(), one.Rollout); err != nil || r.Result == nil {
		t.Errorf("got %+v, %v", r, err)
	}
	found, err := source.Rollout(t.Context(), one.Rollout)
	harness.Must(t, err)
	site := serve(t)
	site.one = found
	c := site.browser(t)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, site.base+"/api/rollouts/"+string(one.Rollout)+"/files/turngate.json", nil)
	harness.Must(t, err)
	a, err := c.Do(q)
	harness.Must(t, err)
	a.Body.Close()
	if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "application/octet-stream" || a.Header.Get("Content-Disposition") != `attachment; filename="turngate.json"` || !strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("got %d %v", a.StatusCode, a.Header)
	}
	for _, name := range []string{"../turngate.json", "..%2Fturngate.json", "%2Fetc%2Fpasswd", "none"} {
		if code, text := get(t, c, site.base+"/api/rollouts/"+string(one.Rollout)+"/files/"+name, nil); code == http.StatusOK {
			t.Errorf("%s: got %.100s", name, text)
		}
	}
	for _, of := range []string{filepath.Join(dir, "one"), filepath.Join(dir, "one") + "/"} {
		if flags := (&console.Folder{Dir: of}).Flags("local"); flags != "--runs '"+dir+"'" {
			t.Errorf("the rollouts of %s are found with %s", of, flags)
		}
	}
	if _, err := source.Rollout(t.Context(), "local-none"); err == nil {
		t.Error("a rollout that is not there was found")
	}
}

// A rollout that is in two jobs, as after a copy of a job's folder, is shown once, and the
// page tells so in each round.
func TestACopyOfAJobIsNamed(t *testing.T) {
	dir := t.TempDir()
	_, j := jobOfTwo(t, filepath.Join(dir, "one"))
	j.Close()
	harness.Must(t, os.CopyFS(filepath.Join(dir, "two"), os.DirFS(filepath.Join(dir, "one"))))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	shown := map[schema.ID]string{}
	var told []string
	(&console.Folder{Dir: dir}).Follow(ctx, func(r *recorded.Rollout) {
		if filepath.Base(r.Job) != "one" {
			t.Errorf("the rollout %s of the copy is shown", r.ID)
		}
		shown[r.ID] = r.Job
	}, func(err error) {
		if told = append(told, fmt.Sprint(err)); len(told) == 2 {
			stop()
		}
	})
	want := "the job '" + filepath.Join(dir, "two") + "' has 2 rollouts of the job '" + filepath.Join(dir, "one") + "'"
	for _, text := range told {
		if !strings.HasPrefix(text, want) {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	if len(shown) != 2 || len(told) != 2 {
		t.Errorf("%d rollouts are shown, and the copy was named %d times", len(shown), len(told))
	}
}
