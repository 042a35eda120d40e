package jobs_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// gated answers after open is closed. It reports each call before.
type gated struct {
	open  chan struct{}
	asked chan schema.ID
	calls atomic.Int64
}

func newGated() *gated { return &gated{open: make(chan struct{}), asked: make(chan schema.ID, 100)} }

func (g *gated) answer(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
	key, err := schema.ParseKey(c.Key)
	if err != nil {
		return nil, err
	}
	g.calls.Add(1)
	g.asked <- key.Rollout
	select {
	case <-g.open:
		return done(ctx, c)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// runs starts the run of a job. The channel has its error.
func runs(ctx context.Context, w *jobs.Work, tr *trainer.Trainer, o jobs.Options) <-chan error {
	out := make(chan error, 1)
	go func() { out <- w.Run(ctx, tr, o) }()
	return out
}

func state(t *testing.T, dir string) jobs.State {
	t.Helper()
	s, err := jobs.StateOf(t.Context(), dir)
	harness.Must(t, err)
	return s
}

func control(t *testing.T, dir string, a jobs.Action, want jobs.State) {
	t.Helper()
	if s, err := jobs.Control(t.Context(), dir, a); err != nil || s != want {
		t.Fatalf("%s: got %q, %v, want %q", a, s, err, want)
	}
}

// TestAPause lets the trials that run end, and the others begin only after it. Each trial
// has one result.
func TestAPause(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	g, s := newGated(), &seen{}
	w := begin(t, 8, g.answer)
	dir := w.Job.Dir
	ended := runs(t.Context(), w, newTrainer(t, n), jobs.Options{Progress: s})
	first := map[schema.ID]bool{<-g.asked: true, <-g.asked: true} // both slots of the worker
	control(t, dir, jobs.ActionPause, jobs.StatePaused)
	control(t, dir, jobs.ActionPause, jobs.StatePaused)
	if info, err := os.Stat(filepath.Join(dir, "control.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	close(g.open)
	harness.Eventually(t, "the results of the trials that ran", 5*time.Minute, func() bool { return s.results.Load() == 2 })
	if state(t, dir) != jobs.StatePaused {
		t.Errorf("the job is %s", state(t, dir))
	}
	_, results, err := jobs.Read(dir)
	harness.Must(t, err)
	for _, r := range results {
		if !first[r.ID] || r.Fault != nil {
			t.Errorf("got %+v", r)
		}
	}
	control(t, dir, jobs.ActionResume, jobs.StateRunning)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(w.Job.Missing()) != 0 || s.results.Load() != 8 || s.moved.Load() != 6 || s.pauses.Load() != 2 {
		t.Errorf("%d trials are missing; reported are %d results, %d moves, %d changes of the pause", len(w.Job.Missing()), s.results.Load(), s.moved.Load(), s.pauses.Load())
	}
	for _, r := range w.Job.Results() {
		if r.Fault != nil || r.Reward == nil {
			t.Errorf("got %+v", r)
		}
	}
	w.Job.Close()
	var rests *jobs.NotRunningError
	if _, err := jobs.Control(t.Context(), dir, jobs.ActionPause); !errors.As(err, &rests) || rests.State != jobs.StateEnded || state(t, dir) != jobs.StateEnded {
		t.Errorf("the job has ended: %v", err)
	}
}

// A pause that finds no trial to hold ends with the job, and a limit ends a paused job.
func TestAPausedJobEnds(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	g := newGated()
	w := begin(t, 2, g.answer)
	tr := newTrainer(t, n)
	ended := runs(t.Context(), w, tr, jobs.Options{})
	<-g.asked
	<-g.asked
	control(t, w.Job.Dir, jobs.ActionPause, jobs.StatePaused)
	close(g.open)
	if err := <-ended; err != nil || len(w.Job.Missing()) != 0 {
		t.Errorf("got %v, %d missing", err, len(w.Job.Missing()))
	}
	tr.Close()

	g = newGated()
	var calls atomic.Int64
	costs := costly(&calls, true)
	w = begin(t, 10, func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		if _, err := g.answer(ctx, c); err != nil {
			return nil, err
		}
		return costs(ctx, c)
	})
	ended = runs(t.Context(), w, newTrainer(t, n), jobs.Options{Limits: jobs.Limits{Tokens: 15}})
	<-g.asked
	<-g.asked
	control(t, w.Job.Dir, jobs.ActionPause, jobs.StatePaused)
	close(g.open)
	var limit *jobs.LimitError
	if err := <-ended; !errors.As(err, &limit) || len(w.Job.Results()) != 2 || w.Job.Plan.StoppedBy != jobs.ByLimit {
		t.Errorf("got %v, %d results, stopped by %q", err, len(w.Job.Results()), w.Job.Plan.StoppedBy)
	}
}

// A cancelled job has no result of the rollouts that ran, and can be resumed.
func TestAJobIsCancelled(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	g := newGated()
	w := begin(t, 4, g.answer)
	dir, tr := w.Job.Dir, newTrainer(t, n)
	if state(t, dir) != jobs.StateRunning { // it has not begun, and has its folder
		t.Errorf("the job is %s", state(t, dir))
	}
	var rests *jobs.NotRunningError
	if _, err := jobs.Control(t.Context(), dir, jobs.ActionCancel); !errors.As(err, &rests) || !strings.Contains(err.Error(), "begins or ends") {
		t.Errorf("before it runs: %v", err)
	}
	ended := runs(t.Context(), w, tr, jobs.Options{Remote: true})
	<-g.asked
	control(t, dir, jobs.ActionCancel, jobs.StateRunning)
	if err := <-ended; !errors.Is(err, jobs.ErrCancelled) {
		t.Fatalf("got %v", err)
	}
	tr.Close()
	w.Job.Close()
	p, results, err := jobs.Read(dir)
	harness.Must(t, err)
	if len(results) != 0 || p.StoppedBy != jobs.ByInterrupt || state(t, dir) != jobs.StateStopped {
		t.Errorf("%d results, stopped by %q, the job is %s", len(results), p.StoppedBy, state(t, dir))
	}
	if _, err := jobs.Control(t.Context(), dir, jobs.ActionResume); !errors.As(err, &rests) || rests.State != jobs.StateStopped {
		t.Errorf("a stopped job: %v", err)
	}
	j, err := jobs.Open(dir)
	harness.Must(t, err)
	defer j.Close()
	again, err := jobs.Resume(t.Context(), j, rules(done), nil)
	harness.Must(t, err)
	harness.Must(t, again.Run(t.Context(), newTrainer(t, n), jobs.Options{}))
	if len(j.Missing()) != 0 || j.Plan.Stopped != "" {
		t.Errorf("%d trials are missing, stopped: %q", len(j.Missing()), j.Plan.Stopped)
	}
}

// TestAJobsProcessIsNotBelieved: another person's folder may have a socket that gives no answer,
// or says what no job says. It is an error of that job alone, in bounded time.
func TestAJobsProcessIsNotBelieved(t *testing.T) {
	for text, want := range map[string]string{
		"": "does not answer within 3s", `{"state":"running\nforged  ended  mini"}`: "answers with the state", `{"state":"ended"}`: "answers with the state", `{}`: "answers with the state", "x": "ask the job",
	} {
		dir := filepath.Join(t.TempDir(), "job")
		j, err := jobs.Create(dir, plan(t, 1, "x"))
		harness.Must(t, err)
		j.Close()
		t.Chdir(dir)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "control.sock"})
		harness.Must(t, err)
		ended := make(chan struct{})
		srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if text == "" {
				<-ended
			}
			_, _ = io.WriteString(w, text)
		})}
		go func() { _ = srv.Serve(l) }()
		_, err = jobs.StateOf(t.Context(), dir)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		close(ended)
		harness.Must(t, srv.Close())
	}
}

// TestFilesOfAnotherPersonHoldNoJobUp: a FIFO or a link in the place of a file that is written.
func TestFilesOfAnotherPersonHoldNoJobUp(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for name, make := range map[string]func(string) error{
		"job.log a FIFO":            func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) },
		"job.log a link":            func(file string) error { return errors.Join(os.Remove(file), os.Symlink(out, file)) },
		".turngate.json.new a FIFO": func(file string) error { return unix.Mkfifo(file, 0o600) },
		"retried a link":            func(file string) error { return os.Symlink(filepath.Dir(out), file) },
		"control.sock a link":       func(file string) error { return os.Symlink("/nonexistent", file) },
	} {
		j := create(t, plan(t, 1, "x"))
		tr := j.Missing()[0]
		harness.Must(t, j.Put(t.Context(), resultOf(tr, 1), files{}.fetch))
		j.Close()
		harness.Must(t, os.Truncate(filepath.Join(j.Dir, tr.Name, "turngate.json"), 0))
		file, _, _ := strings.Cut(name, " ")
		harness.Must(t, make(filepath.Join(j.Dir, file)))
		if state(t, j.Dir) != jobs.StateEnded {
			t.Errorf("%s: the job is %s", name, state(t, j.Dir))
		}
		again, err := jobs.Open(j.Dir)
		if file == "job.log" {
			if err == nil {
				t.Errorf("%s: it was opened", name)
				again.Close()
			}
			continue
		}
		harness.Must(t, err)
		harness.Must(t, again.SetSeal("s"))
		err = again.Put(t.Context(), resultOf(tr, 0), files{}.fetch)
		if moved, _ := filepath.Glob(filepath.Join(filepath.Dir(out), "*")); len(moved) > 0 || (err == nil) != (file != "retried") {
			t.Errorf("%s: %v, %q", name, err, moved)
		}
		again.Close()
	}
}

// A job still has its socket after its process was killed, in a folder with a long path.
func TestAJobWhoseProcessDied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "job")
	p := plan(t, 1, "x")
	j, err := jobs.Create(dir, p)
	harness.Must(t, err)
	j.Close()
	t.Chdir(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "control.sock"})
	harness.Must(t, err)
	l.SetUnlinkOnClose(false)
	harness.Must(t, l.Close())
	var rests *jobs.NotRunningError
	if _, err := jobs.Control(t.Context(), dir, jobs.ActionPause); !errors.As(err, &rests) || !strings.Contains(err.Error(), "its process died") || state(t, dir) != jobs.StateDied {
		t.Errorf("got %v", err)
	}
	if _, err := jobs.Control(t.Context(), t.TempDir(), jobs.ActionPause); !errors.Is(err, jobs.ErrNoJob) {
		t.Errorf("not a job: %v", err)
	}
}
