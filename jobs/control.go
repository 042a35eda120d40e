package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// State is the state of a job.
type State string

// The states.
const (
	StateRunning State = "running" // its process runs, or begins or ends
	StatePaused  State = "paused"  // its process runs, and no trial begins
	StateEnded   State = "ended"   // each trial has a result
	StateStopped State = "stopped" // its process ended in order before that; Plan.Stopped has the reason
	StateDied    State = "died"    // its process was killed, or has not run yet
	StateOpen    State = "open"    // a job of Harbor that has not ended: it runs, or its process ended before that
)

// Action changes a running job.
type Action string

// The actions.
const (
	ActionPause  Action = "pause"  // no trial begins any more; the ones that run end
	ActionResume Action = "resume" // trials begin again
	ActionCancel Action = "cancel" // the rollouts that run are cancelled, and the run ends
)

// ErrCancelled ends a run that another process cancelled.
var ErrCancelled = errors.New("the job was cancelled")

// NotRunningError reports that no process runs a job.
type NotRunningError struct {
	Dir   string
	State State
}

func (e *NotRunningError) Error() string {
	text := map[State]string{
		StateEnded: "it has ended", StateStopped: "it was stopped", StateDied: "its process died",
		StateRunning: "its process begins or ends: try again",
	}[e.State]
	return fmt.Sprintf("the job %s does not run: %s", e.Dir, text)
}

// controlName is the socket in the folder of a running job.
const controlName = "control.sock"

// Bounds of a request to a running job: of one that changes it, and of one for its state.
const (
	controlWait = 30 * time.Second
	stateWait   = 3 * time.Second
)

// reply is the answer of a running job.
type reply struct {
	State State  `json:"state,omitempty"`
	Error string `json:"error,omitempty"`
}

// Control does something to the running job in a folder and returns its new state. The
// error is a *NotRunningError if no process runs the job.
func Control(ctx context.Context, dir string, a Action) (State, error) {
	if err := IsOwn(dir); err != nil {
		return "", err
	}
	r, err := ask(ctx, controlWait, dir, http.MethodPost, string(a))
	switch {
	case err != nil:
		return "", err
	case r == nil:
		state, err := restingState(dir)
		if err != nil {
			return "", err
		}
		return state, &NotRunningError{dir, state}
	case r.Error != "":
		return r.State, fmt.Errorf("%s the job %s: %s", a, dir, r.Error)
	default:
		return r.State, nil
	}
}

// StateOf returns the state of the job in a folder.
func StateOf(ctx context.Context, dir string) (State, error) {
	if err := IsOwn(dir); errors.Is(err, ErrHarbor) {
		if harborEnd(dir).IsZero() {
			return StateOpen, nil
		}
		return StateEnded, nil
	} else if err != nil {
		return "", err
	}
	r, err := ask(ctx, stateWait, dir, http.MethodGet, "state")
	if err != nil {
		return "", err
	}
	if r == nil {
		return restingState(dir)
	}
	return r.State, nil
}

// ask sends a request to the process that runs a job. The reply is nil if there is no such
// process.
func ask(ctx context.Context, within time.Duration, dir, method, path string) (*reply, error) {
	bound, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("its process does not answer within %s", within))
	defer cancel()
	res, err := request(bound, dir, method, path)
	if res == nil && err == nil {
		return nil, nil
	}
	var r reply
	if err == nil {
		defer res.Body.Close()
		if err = json.NewDecoder(io.LimitReader(res.Body, 1<<16)).Decode(&r); err != nil {
			err = fmt.Errorf("ask the job %s: %w", dir, rawjson.Plain(err))
		}
	}
	switch {
	case err != nil && bound.Err() != nil:
		return nil, fmt.Errorf("ask the job %s: %w", dir, context.Cause(bound))
	case err != nil:
		return nil, err
	case r.State != StateRunning && r.State != StatePaused:
		return nil, fmt.Errorf("ask the job %s: its process answers with the state %q: want %s or %s", dir, schema.Clip(string(r.State), 40), StateRunning, StatePaused)
	}
	return &r, nil
}

// request sends a request to the process that runs a job. The response is nil if there is
// no such process.
func request(ctx context.Context, dir, method, path string) (*http.Response, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("ask the job: %w", err)
	}
	defer f.Close()
	if info, err := os.Lstat(filepath.Join(dir, controlName)); err != nil || info.Mode()&fs.ModeSocket == 0 {
		return nil, nil //nolint:nilerr // without a socket there is no process
	}
	t := &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: controlWait, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		path, release, err := kernel.SocketPath(f, controlName)
		if err != nil {
			return nil, err
		}
		defer release()
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	q, err := http.NewRequestWithContext(ctx, method, "http://job/"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the job: %w", err)
	}
	res, err := (&http.Client{Transport: t}).Do(q)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED), left(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask the job %s: %w", dir, err)
	}
	return res, nil
}

// left reports whether an error means that the process at the other end of a socket has
// left.
func left(err error) bool {
	return errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// restingState returns the state of a job that answers no request.
func restingState(dir string) (State, error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", fmt.Errorf("look at the job: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if f.Close(); err != nil {
		return StateRunning, nil //nolint:nilerr // another process has the lock
	}
	p, results, err := Read(dir)
	switch {
	case err != nil:
		return "", err
	case len(results) == len(p.Trials):
		return StateEnded, nil
	case p.Stopped != "":
		return StateStopped, nil
	default:
		return StateDied, nil
	}
}

// listen serves requests of other processes until stop is called.
func (r *runner) listen() (stop func(), err error) {
	path, release, err := kernel.SocketPath(r.Job.lock, controlName)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", filepath.Join(r.Job.Dir, controlName), err)
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that died
		return nil, fmt.Errorf("listen at %s: %w", filepath.Join(r.Job.Dir, controlName), err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", filepath.Join(r.Job.Dir, controlName), err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen at %s: %w", filepath.Join(r.Job.Dir, controlName), err), l.Close())
	}
	mux := http.NewServeMux()
	for pattern, act := range map[string]func() error{
		"GET /state":                    func() error { return nil },
		"POST /" + string(ActionPause):  r.pause,
		"POST /" + string(ActionResume): r.goOn,
		"POST /" + string(ActionCancel): func() error { r.fail(ErrCancelled); return nil },
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			answer := reply{}
			if err := act(); err != nil {
				answer.Error = err.Error()
			}
			answer.State = r.state()
			_ = json.NewEncoder(w).Encode(answer) // the other process may have left
		})
	}
	mux.HandleFunc("GET /progress", r.feed.serve)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: controlWait}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l) // until stop
	}()
	return func() {
		r.feed.end()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close() // a request that goes on gets no answer
		}
		<-served
		release()
	}, nil
}

func (r *runner) state() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		return StatePaused
	}
	return StateRunning
}

// pause cancels the rollouts that have not begun, and lets no trial begin.
func (r *runner) pause() error {
	r.halting.Lock()
	defer r.halting.Unlock()
	r.mu.Lock()
	paused, limit := r.paused, r.limit
	r.paused = limit == nil
	r.mu.Unlock()
	if limit != nil {
		return fmt.Errorf("it stops: %w", limit)
	}
	if paused {
		return nil
	}
	r.halt("paused")
	r.Progress.Paused(true)
	return nil
}

// goOn submits the trials that have not begun since a pause, as new rollouts.
func (r *runner) goOn() error {
	r.halting.Lock()
	defer r.halting.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit != nil {
		return fmt.Errorf("it stops: %w", r.limit)
	}
	if !r.paused {
		return nil
	}
	r.paused = false
	r.submitting, r.endSubmit = context.WithCancel(r.inner)
	var trials []Trial
	for _, t := range r.Job.Missing() {
		before, held := r.held[t.Name]
		if !held {
			continue
		}
		trials = append(trials, t)
		r.waiting[t.Rollout] = true
		r.answers[t.Rollout] = r.trials[t.Name].answer
		r.Progress.Moved(before, t.Rollout)
	}
	clear(r.held)
	r.Job.Logf("resumed: %d trials go on", len(trials))
	r.Progress.Paused(false)
	if len(r.waiting) == 0 {
		r.enough()
		return nil
	}
	r.submits.Add(1)
	submitting := r.submitting
	r.later.Go(func() {
		defer r.submits.Done()
		r.submit(submitting, r.groupsOf(trials), r.trainer.Submit)
	})
	return nil
}
