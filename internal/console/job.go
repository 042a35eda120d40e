package console

import (
	"context"
	"errors"
	"sync"

	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Job is the Source of a job that runs: its folder has the ended rollouts, and the system the
// running ones.
type Job struct {
	Folder *Folder
	Bus    *Bus // as the job's trainer
}

// Name implements Source.
func (j *Job) Name() string { return j.Folder.Name() }

// Flags implements Source. The folder remains after the end of the system.
func (j *Job) Flags(trainer string) string { return j.Folder.Flags(trainer) }

// Files implements Source.
func (j *Job) Files() error { return nil }

// Runs implements Source.
func (j *Job) Runs() *Folder { return j.Folder }

// Follow implements Source.
func (j *Job) Follow(ctx context.Context, show func(*recorded.Rollout), trouble func(error)) {
	var mu sync.Mutex
	trials := map[schema.ID]*recorded.Rollout{} // nil: it has ended, or was replaced
	lives := map[schema.ID]*recorded.Rollout{}  // that have not ended and are not in trials
	var running sync.WaitGroup
	running.Go(func() {
		j.Folder.Follow(ctx, func(r *recorded.Rollout) {
			mu.Lock()
			defer mu.Unlock()
			live := lives[r.ID]
			delete(lives, r.ID)
			for _, id := range r.Trial.Stopped {
				trials[id] = nil
			}
			if trials[r.ID] = r; r.Result != nil {
				trials[r.ID] = nil
			} else if live != nil {
				r = of(r, live)
			}
			show(r)
		}, trouble)
	})
	running.Go(func() {
		j.Bus.Follow(ctx, func(live *recorded.Rollout) {
			mu.Lock()
			defer mu.Unlock()
			switch trial, known := trials[live.ID]; {
			case trial != nil:
				show(of(trial, live))
			case known:
			case live.State.Status.Terminal(): // the folder has its result soon, if it is of this job
				delete(lives, live.ID)
			default:
				lives[live.ID] = live
			}
		}, trouble)
	})
	running.Wait()
}

// of returns a rollout of a running system as the one of a trial.
func of(trial, live *recorded.Rollout) *recorded.Rollout {
	out := *live
	out.Job, out.Trial, out.Plan = trial.Job, trial.Trial, trial.Plan
	return &out
}

// Rollout implements Source.
func (j *Job) Rollout(ctx context.Context, id schema.ID) (*recorded.Rollout, error) {
	trial, err := j.Folder.Rollout(ctx, id)
	if err != nil || trial.Result != nil {
		return trial, err
	}
	live, err := j.Bus.Rollout(ctx, id)
	if errors.Is(err, recorded.ErrNotFound) { // it is not submitted yet
		return trial, nil
	}
	if err != nil {
		return nil, err
	}
	return of(trial, live), nil
}

// Listen implements Live.
func (j *Job) Listen(ctx context.Context, id schema.ID, to recorded.Listener) error {
	return j.Bus.Listen(ctx, id, to)
}

// Unheard implements Live.
func (j *Job) Unheard() string { return j.Bus.Unheard() }
