// Package worker runs rollouts. A Worker has slots that take jobs from the
// broker; package rollout has one execution of a request.
package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Config configures a worker.
type Config struct {
	Slots    int // number of concurrent rollouts; default 1
	Backends []sandboxes.Backend
	Agents   []agents.Spec
	Cache    agents.Cache
	Caps     place.Caps
	// Owner marks this worker's sandboxes on its host; default: the worker's name.
	Owner string
	// Upstreams are engines that this worker may call.
	Upstreams []models.Upstream
	Warm      func() []string // lists images that this host has; nil: unknown
	Grace     time.Duration   // time for running rollouts to end when the worker stops; default 30 s
	// Hurry ends the grace period when it is closed.
	Hurry  <-chan struct{}
	Timing gate.Timing
	// Bundles keeps the unpacked bundles of tasks.
	Bundles *bundles.Cache
	// MaxSnapshot bounds the files of one snapshot of a group, in bytes; 0: no bound,
	// below 0: no snapshots are made.
	MaxSnapshot int64
	// Memory bounds the memory of all gate sessions of this worker: conversations
	// that are kept for later calls, and open requests. Nil: each session has its own
	// bounds, 256 MiB and 512 MiB.
	Memory  *gate.Memory
	Metrics *telemetry.Rollouts // nil: none
	Log     zerolog.Logger
	Person  rollout.Person // does the rollouts of agents.Person; nil: there is none
	Reach   *reach.Host    // serves the sandboxes to commands of the user, or of operators; nil: none does
	Keep    rollout.Keep   // needs Reach
}

// Worker takes jobs and runs them.
type Worker struct {
	cfg       Config
	queue     *queue.Worker
	calls     *modelcall.Client
	snapshots *place.Snapshots
	busy      atomic.Int64 // slots with a job
	shells    shells
}

func (w *Worker) owner() string { return cmp.Or(w.cfg.Owner, w.queue.ID()) }

// OwnerOf returns an owner for the sandboxes of a worker with this state folder. Two
// workers with one name and different state folders, for example of two NATS
// systems on one host, get different owners.
func OwnerOf(worker, state string) string {
	if abs, err := filepath.Abs(state); err == nil {
		state = abs
	}
	sum := sha256.Sum256([]byte(state))
	return worker + "-" + hex.EncodeToString(sum[:4])
}

// ErrDrained is the cause of the end of rollouts that a stopping worker ends early.
// Their requests go back to the queue.
var ErrDrained = errors.New("the worker stops")

// endFor is the time for which a stopping worker tries to end its
// rollouts if the server is unreachable. With the usual grace and the time to
// close a sandbox, the worker ends within the 90 s that systemd allows.
const endFor = 40 * time.Second

// New validates the configuration and returns a worker, which claims rollouts with q
// and sends model calls with client.
func New(c Config, q *queue.Worker, client *modelcall.Client) (*Worker, error) {
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
	c.Upstreams = withLines(c.Upstreams)
	snapshots := place.NewSnapshots(c.MaxSnapshot, func(err error) { c.Log.Warn().Err(err).Msg("a snapshot was not removed") })
	return &Worker{cfg: c, queue: q, calls: client, snapshots: snapshots}, nil
}

// Run takes and runs jobs until the context ends. Then it takes no new jobs,
// lets running rollouts end within the grace period, and puts the others back into
// the queue without spending a try. When Run returns, all its sandboxes
// are closed and its goroutines have ended.
func (w *Worker) Run(ctx context.Context) error {
	for _, b := range w.cfg.Backends { // remove old sandboxes before queue.Run releases the former instance's rollouts
		n, err := b.Sweep(ctx, w.owner(), func(schema.ID) bool { return false })
		if err != nil {
			w.cfg.Log.Warn().Err(err).Str("backend", b.Name()).Msg("sandboxes or images of earlier processes were not removed")
		} else if n > 0 {
			w.cfg.Log.Info().Int("sandboxes", n).Str("backend", b.Name()).Msg("removed sandboxes of an earlier process")
		}
	}
	alive, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	var bg sync.WaitGroup
	var queueErr error
	bg.Go(func() { queueErr = w.queue.Run(alive) })
	bg.Go(func() { w.snapshots.Run(alive) })
	for _, b := range w.cfg.Backends {
		if keeper, ok := b.(sandboxes.CacheKeeper); ok {
			bg.Go(func() {
				keeper.KeepCache(ctx, func(err error) {
					w.cfg.Log.Warn().Err(err).Str("backend", b.Name()).Msg("the build cache was not pruned")
				})
			})
		}
	}
	work, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(nil)
	ending, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	var slots sync.WaitGroup
	for range w.cfg.Slots {
		slots.Go(func() {
			for {
				job, err := w.queue.Take(ctx)
				if err != nil {
					return
				}
				w.busy.Add(1)
				w.runJob(work, ending, job)
				w.busy.Add(-1)
			}
		})
	}
	<-ctx.Done()
	w.cfg.Log.Info().Int64("running", w.busy.Load()).Msgf("stopping: no new rollouts are taken; those that run have %v, or until another signal, and then go back into the queue", w.cfg.Grace)
	w.queue.Drain(ctx)
	drained := make(chan struct{})
	bg.Go(func() {
		wait(w.cfg.Grace, drained, w.cfg.Hurry)
		stopWork(ErrDrained)
		wait(endFor, drained, nil)
		giveUp(ErrDrained)
	})
	slots.Wait()
	close(drained)
	leave()
	bg.Wait()
	if queueErr != nil {
		w.cfg.Log.Debug().Err(queueErr).Msg("the others were not told that this worker has left")
	}
	return nil
}

// Ready returns nil if the worker can take rollouts, and otherwise the reason.
func (w *Worker) Ready() error { return w.queue.Ready() }

// State returns the present state of the worker.
func (w *Worker) State() telemetry.Worker {
	s := telemetry.Worker{Slots: w.cfg.Slots, Busy: int(w.busy.Load()), Suspended: w.queue.Suspended(), Ready: w.queue.Ready() == nil, Holds: w.queue.Holds()}
	if w.cfg.Bundles != nil {
		b := w.cfg.Bundles.Stats()
		s.BundleBytes, s.BundlesFound, s.BundlesAdded = b.Bytes, b.Found, b.Fetched
	}
	return s
}

// wait waits for d or until a channel is closed.
func wait(d time.Duration, done, hurry <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	case <-hurry:
	}
}

// Offer describes the requests that this worker can run, for the routing of
// requests.
func (c Config) Offer() schema.Offer {
	o := schema.Offer{
		Backends: []string{}, Agents: []string{}, Networks: c.Caps.Networks, GPUs: c.Caps.GPUs, CPUs: c.Caps.CPUs, MemoryBytes: c.Caps.MemoryBytes, DiskBytes: c.Caps.DiskBytes, Pids: c.Caps.Pids,
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

// runJob runs one job and ends it. From here on all that is reported of the rollout
// passes its record.
func (w *Worker) runJob(work, ending context.Context, job *queue.Job) {
	rec := record.New(&job.Request, job.Attempt, w.queue.ID(), record.Exits{
		Emit: job.Emit, Live: job.Live, Put: job.KeepArtifact, Telemetry: w.cfg.Metrics,
		Log: w.cfg.Log.With().Str("rollout", string(job.Request.ID)).Int("attempt", job.Attempt).Logger(),
	})
	log := &rec.Log
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	stop := context.AfterFunc(job.Context(), func() { cancel(context.Cause(job.Context())) }) //nolint:contextcheck // joins the contexts of the job and the worker
	defer stop()
	log.Info().Str("agent", job.Request.Agent.Name).Str("task", job.Request.Task.Name).Msg("rollout begins")
	over := w.shells.begin(ctx, job.Request.ID, rec)
	err := w.rollout(ctx, job, rec)
	over()
	var broken *ends.Broken
	switch {
	case err == nil:
		result := rec.Result()
		log.Info().Str("status", string(result.Status)).Msg("rollout ended")
		err = job.Done(ending, result)
	case errors.Is(err, queue.ErrFenced):
		job.Abandon()
		log.Warn().Msg("rollout dropped, it is another attempt's by now")
		return
	case errors.Is(err, queue.ErrCancelled):
		log.Info().Msg("rollout cancelled")
		err = job.Done(ending, queue.Cancelled(rec.Result()))
	case errors.Is(err, ErrDrained):
		log.Info().Msg("rollout put back, the worker stops")
		err = job.Return(ending, nil, true, 0)
	case errors.As(err, &broken):
		log.Warn().Err(err).Msg("rollout broke, it is put back")
		err = job.Return(ending, record.Masked(rec, broken.Fault), false, 2*time.Second)
	default:
		log.Error().Err(err).Msg("rollout ended without a reason")
		err = job.Return(ending, record.Masked(rec, schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "%v", err)), false, 2*time.Second)
	}
	if err != nil {
		log.Error().Err(err).Msg("rollout could not be ended; its request comes back")
	}
}

// rollout runs one job.
func (w *Worker) rollout(ctx context.Context, job *queue.Job, rec *record.Record) error {
	caller := w.calls.Caller(job.Request, job)
	r := &rollout.Rollout{
		Request: job.Request, Attempt: job.Attempt, Record: rec, Owner: w.owner(), Backends: w.cfg.Backends, Agents: w.cfg.Agents, Cache: w.cfg.Cache, Upstreams: w.cfg.Upstreams, Caps: w.cfg.Caps,
		Timing: w.cfg.Timing, Memory: w.cfg.Memory, Snapshots: w.snapshots, Person: w.cfg.Person, Reach: w.cfg.Reach, Keep: w.cfg.Keep,
		Services: rollout.Services{
			Bundle: w.bundle(job), Suspended: job.Suspended, HeldByTrainer: job.HeldByTrainer, Model: caller, Shard: func(shard string) gate.Model { return caller.To(shard) },
			Tool: caller.Tool, Verify: caller.Verify,
		},
	}
	return r.Run(ctx)
}

// bundle returns a function that opens a task's files. A missing, broken or too
// large bundle gives a *tasks.BundleError, a fault of the task.
func (w *Worker) bundle(job *queue.Job) func(ctx context.Context, sha string) (*tasks.Bundle, error) {
	return func(ctx context.Context, sha string) (*tasks.Bundle, error) {
		b, err := w.cfg.Bundles.Open(ctx, job.Request.ID.Trainer(), sha, func(ctx context.Context, to io.Writer) error { return job.CopyBundle(ctx, sha, to) })
		if unusable(err) {
			return nil, &tasks.BundleError{Reason: err.Error()}
		}
		return b, err
	}
}

// unusable reports whether a second read of the object would fail too.
func unusable(err error) bool {
	var large *broker.TooLargeError
	return errors.Is(err, broker.ErrNotFound) || errors.Is(err, broker.ErrDigest) || errors.As(err, &large)
}
