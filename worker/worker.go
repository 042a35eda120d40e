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
	// Upstreams are engines that this worker may ask itself.
	Upstreams []Upstream
	Warm      func() []string // images that are here already; nil: not known
	Grace     time.Duration   // how long running rollouts may go on when the worker is to stop; default 30 s
	// Hurry, once closed, ends the grace period at once.
	Hurry  <-chan struct{}
	Timing gate.Timing
	// Memory bounds the conversations that are kept to compare later calls
	// with, of all rollouts together; nil: 256 MiB for each.
	Memory *gate.Memory
	Log    zerolog.Logger
}

// Worker takes jobs and runs them.
type Worker struct {
	cfg  Config
	side *broker.WorkerSide
}

// ErrDrained is the cause of rollouts that are put back because their worker
// stops.
var ErrDrained = errors.New("the worker stops")

// settleFor is how long a worker that stops still tries to settle what ran,
// when the server cannot be reached. With the usual grace and what it takes to
// end a sandbox, the worker ends within the 90 s that systemd gives it.
const settleFor = 40 * time.Second

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
	return &Worker{cfg: c, side: side}, nil
}

// Run takes and runs jobs until the context ends. Then it takes nothing new,
// lets running rollouts end within the grace period, and puts the others back
// without counting their try. Nothing of it is left when Run returns.
func (w *Worker) Run(ctx context.Context) error {
	for _, b := range w.cfg.Backends { // before their rollouts are freed for others
		n, err := b.Sweep(ctx, w.side.ID(), func(schema.ID) bool { return false })
		if err != nil {
			w.cfg.Log.Warn().Err(err).Str("backend", b.Name()).Msg("what an earlier process left was not swept")
		} else if n > 0 {
			w.cfg.Log.Info().Int("sandboxes", n).Str("backend", b.Name()).Msg("swept what an earlier process left")
		}
	}
	alive, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	var bg sync.WaitGroup
	var sideErr error
	bg.Go(func() { sideErr = w.side.Run(alive) })
	work, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(nil)
	settle, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	var slots sync.WaitGroup
	for range w.cfg.Slots {
		slots.Go(func() {
			for {
				job, err := w.side.Take(ctx)
				if err != nil {
					return
				}
				w.one(work, settle, job)
			}
		})
	}
	<-ctx.Done()
	w.side.Drain(ctx)
	drained := make(chan struct{})
	bg.Go(func() {
		wait(w.cfg.Grace, drained, w.cfg.Hurry)
		stopWork(ErrDrained)
		wait(settleFor, drained, nil)
		giveUp(ErrDrained)
	})
	slots.Wait()
	close(drained)
	leave()
	bg.Wait()
	if sideErr != nil {
		w.cfg.Log.Debug().Err(sideErr).Msg("the others were not told that this worker has left")
	}
	return nil
}

// wait waits for a while, or for either channel.
func wait(d time.Duration, done, hurry <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	case <-hurry:
	}
}

// Offer says what this worker can run, for those who pass requests on.
func (c Config) Offer() schema.Offer {
	o := schema.Offer{
		Backends: []string{}, Agents: []string{}, Networks: c.Caps.Networks, GPUs: c.Caps.GPUs, CPUs: c.Caps.CPUs, MemoryBytes: c.Caps.MemoryBytes, DiskBytes: c.Caps.DiskBytes,
	}
	for _, u := range c.Upstreams {
		o.Upstreams = append(o.Upstreams, u.Name)
	}
	if c.Warm != nil {
		o.Images = c.Warm()
	}
	for _, b := range c.Backends {
		o.Backends = append(o.Backends, b.Name())
	}
	for _, a := range c.Agents {
		if c.Cache.Installed(a) {
			o.Agents = append(o.Agents, a.Name)
		}
	}
	return o
}

// one runs one job and settles it.
func (w *Worker) one(work, settle context.Context, job *broker.Job) {
	id := job.Request.ID
	log := w.cfg.Log.With().Str("rollout", string(id)).Int("attempt", job.Attempt).Logger()
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	stop := context.AfterFunc(job.Context(), func() { cancel(context.Cause(job.Context())) }) //nolint:contextcheck // the job's life and the worker's meet here
	defer stop()
	log.Info().Str("agent", job.Request.Agent.Name).Str("task", job.Request.Task.Name).Msg("rollout begins")
	result, err := w.rollout(ctx, job, log)
	var broken *BrokenError
	switch {
	case err == nil:
		log.Info().Str("status", string(result.Status)).Msg("rollout ended")
		err = job.Done(settle, result)
	case errors.Is(err, broker.ErrFenced):
		job.Abandon()
		log.Warn().Msg("rollout dropped, it is another attempt's by now")
		return
	case errors.Is(err, broker.ErrCancelled):
		log.Info().Msg("rollout cancelled")
		err = job.Done(settle, broker.Cancelled(result))
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
		Request: job.Request, Attempt: job.Attempt, Worker: w.side.ID(), Backends: w.cfg.Backends, Agents: w.cfg.Agents, Cache: w.cfg.Cache, Upstreams: w.cfg.Upstreams,
		Timing: w.cfg.Timing, Memory: w.cfg.Memory, Log: log,
		Services: Services{
			Bundle: w.bundle, PutArtifact: w.side.KeepArtifact, Emit: job.Emit, Live: job.Live, Held: job.Held, HeldByTrainer: job.HeldByTrainer, Model: model{job.Caller()}, Shard: func(shard string) gate.Model { return model{job.Caller().To(shard)} }, Tool: job.Caller().Tool,
		},
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
