// Package worker runs rollouts: slots that take jobs from the broker, and
// Rollout, which is one execution from top to bottom.
package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/worker/gate"
)

// Config describes a worker.
type Config struct {
	Slots    int // rollouts at once; default 1
	Backends []sandboxes.Backend
	Agents   []agents.Spec
	Cache    agents.Cache
	Caps     Caps
	Grace    time.Duration // how long running rollouts may go on when the worker is to stop; default 30 s
	// Hurry, once closed, ends the grace period at once.
	Hurry   <-chan struct{}
	Version string
	Timing  gate.Timing
	Log     zerolog.Logger
}

// Worker takes jobs and runs them.
type Worker struct {
	cfg  Config
	side *broker.WorkerSide

	mu      sync.Mutex
	running map[schema.ID]struct{}
}

// ErrDrained is the cause of rollouts that are put back because their worker
// stops.
var ErrDrained = errors.New("the worker stops")

const announceEvery = 10 * time.Second

// New checks the configuration.
func New(c Config, side *broker.WorkerSide) (*Worker, error) {
	c.Slots = max(c.Slots, 1)
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	seen := map[string]bool{}
	for _, b := range c.Backends {
		if seen[b.Name()] {
			return nil, fmt.Errorf("the backend %q is listed twice", b.Name())
		}
		seen[b.Name()] = true
	}
	if len(c.Backends) == 0 {
		return nil, errors.New("a worker needs at least one sandbox backend")
	}
	return &Worker{cfg: c, side: side, running: map[schema.ID]struct{}{}}, nil
}

// Run takes and runs jobs until the context ends. Then it takes nothing new,
// lets running rollouts end within the grace period, and puts the others back
// without counting their try. Nothing of it is left when Run returns.
func (w *Worker) Run(ctx context.Context) error {
	for _, b := range w.cfg.Backends {
		n, err := b.Sweep(ctx, w.side.ID(), func(schema.ID) bool { return false })
		if err != nil {
			w.cfg.Log.Warn().Err(err).Str("backend", b.Name()).Msg("what an earlier process left was not swept")
		} else if n > 0 {
			w.cfg.Log.Info().Int("sandboxes", n).Str("backend", b.Name()).Msg("swept what an earlier process left")
		}
	}
	work, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(nil)
	var slots, bg sync.WaitGroup
	leave := make(chan struct{})
	bg.Go(func() { w.announce(ctx, leave) })
	for range w.cfg.Slots {
		slots.Go(func() {
			for {
				job, err := w.side.Take(ctx)
				if err != nil {
					return
				}
				w.one(work, job)
			}
		})
	}
	<-ctx.Done()
	drained := make(chan struct{})
	bg.Go(func() {
		grace := time.NewTimer(w.cfg.Grace)
		defer grace.Stop()
		select {
		case <-grace.C:
		case <-w.cfg.Hurry:
		case <-drained:
		}
		stopWork(ErrDrained)
	})
	slots.Wait()
	close(drained)
	close(leave)
	bg.Wait()
	return nil
}

// announce keeps the presence entry alive while the worker runs.
func (w *Worker) announce(ctx context.Context, leave <-chan struct{}) {
	ctx = context.WithoutCancel(ctx)
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		p := schema.Presence{Version: w.cfg.Version, Slots: w.cfg.Slots, Backends: []string{}, Agents: []string{}}
		for _, b := range w.cfg.Backends {
			p.Backends = append(p.Backends, b.Name())
		}
		for _, a := range w.cfg.Agents {
			if w.cfg.Cache.Installed(a) {
				p.Agents = append(p.Agents, a.Name)
			}
		}
		w.mu.Lock()
		for id := range w.running {
			p.Running = append(p.Running, id)
		}
		w.mu.Unlock()
		op, cancel := context.WithTimeout(ctx, 5*time.Second)
		if err := w.side.Announce(op, p); err != nil {
			w.cfg.Log.Debug().Err(err).Msg("presence was not announced")
		}
		cancel()
		select {
		case <-tick.C:
		case <-leave:
			op, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if err := w.side.Leave(op); err != nil {
				w.cfg.Log.Debug().Err(err).Msg("presence was not removed")
			}
			return
		}
	}
}

// one runs one job and settles it.
func (w *Worker) one(ctx context.Context, job *broker.Job) {
	id := job.Request.ID
	log := w.cfg.Log.With().Str("rollout", string(id)).Int("attempt", job.Attempt).Logger()
	w.mu.Lock()
	w.running[id] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.running, id)
		w.mu.Unlock()
	}()
	held, release := job.Hold(ctx)
	defer release()
	log.Info().Str("agent", job.Request.Agent.Name).Str("task", job.Request.Task.Name).Msg("rollout begins")
	result, err := w.rollout(held, job, log)
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var broken *BrokenError
	switch {
	case err == nil:
		log.Info().Str("status", string(result.Status)).Msg("rollout ended")
		err = job.Done(settle, result)
	case errors.Is(err, broker.ErrCancelled):
		result.Status, result.Reward = schema.StatusCancelled, nil
		result.Fault = schema.Faultf("rollout", schema.CodeCancelled, schema.WhoTrainer, "cancelled by its trainer")
		log.Info().Msg("rollout cancelled")
		err = job.Done(settle, result)
	case errors.Is(err, ErrDrained):
		log.Info().Msg("rollout put back, the worker stops")
		err = job.Return(settle, nil, true, 0)
	case errors.As(err, &broken):
		log.Warn().Err(err).Msg("rollout broke, it is put back")
		err = job.Return(settle, broken.Fault, false, 2*time.Second)
	default:
		log.Error().Err(err).Msg("rollout ended without a reason")
		err = job.Return(settle, schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "%v", err), false, 2*time.Second)
	}
	if err != nil {
		log.Error().Err(err).Msg("rollout could not be settled; its request comes back")
	}
}

// rollout runs one job; a panic is a broken rollout, not a dead worker.
func (w *Worker) rollout(ctx context.Context, job *broker.Job, log zerolog.Logger) (_ schema.Result, err error) {
	r := &Rollout{
		Request: job.Request, Attempt: job.Attempt, Worker: w.side.ID(), Backends: w.cfg.Backends, Agents: w.cfg.Agents, Cache: w.cfg.Cache,
		Caps: w.cfg.Caps, Timing: w.cfg.Timing, Log: log,
		Services: Services{Bundle: w.bundle, PutArtifact: w.side.PutArtifact, Emit: w.side.Emit, Live: w.side.Live, Model: model{w.side.Caller(job.Request)}},
	}
	defer func() {
		if p := recover(); p != nil {
			log.Error().Str("stack", string(debug.Stack())).Msgf("panic: %v", p)
			r.close(ctx)
			err = &BrokenError{schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "panic: %v", p)}
		}
	}()
	return r.Run(ctx)
}

// bundle reads a task's files. A bundle that is not there, or not what its
// name says, is the task's fault.
func (w *Worker) bundle(ctx context.Context, sha string) (*tasks.Bundle, error) {
	data, err := w.side.Bundle(ctx, sha)
	if errors.Is(err, broker.ErrNotFound) || errors.Is(err, broker.ErrDigest) {
		return nil, &tasks.BundleError{Reason: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	return tasks.Open(data)
}
