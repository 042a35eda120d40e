// Package worker runs rollouts. A Worker has slots that take jobs from the
// broker; package rollout has one execution of a request.
package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Config configures a worker.
type Config struct {
	Slots int // most concurrent rollouts; default 1
	// Room bounds the concurrent rollouts by the state of the host; nil: Slots alone does.
	Room     *Room
	Backends []sandboxes.Backend
	Health   *Health // of Backends; nil: one that fails is offered all the same
	Agents   []agents.Spec
	Cache    agents.Cache
	Caps     place.Caps
	Prices   map[string]float64 // of a sandbox, in USD per hour, by backend
	// Owner marks this worker's sandboxes on its host; default: the worker's name.
	Owner string
	// Process is this process among the worker's processes on this host; nil: the only one. It
	// has the turn.
	Process *handover.Process
	Retired func() // is called before another process takes rollouts in this one's place; nil: nothing is
	// Upstreams are engines that this worker may call.
	Upstreams []models.Upstream
	Warm      func() []string // lists images that this host has; nil: unknown
	Grace     time.Duration   // time for running rollouts to end when the worker stops; default 30 s
	// Hurry ends the grace period when it is closed.
	Hurry <-chan struct{}
	// SweepWait is the longest wait for the removal of what earlier processes left, before the
	// worker takes rollouts; default 30 s.
	SweepWait time.Duration
	Timing    gate.Timing
	// Bundles keeps the unpacked bundles of tasks.
	Bundles *bundles.Cache
	// Spool has the files of rollouts until they are stored; nil: the system's folder for
	// temporary files has them.
	Spool *spool.Folder
	// MaxSnapshot bounds the files of one snapshot of a group, in bytes; 0: no bound,
	// below 0: no snapshots are made.
	MaxSnapshot int64
	// Memory bounds the memory of all gate sessions of this worker: conversations
	// that are kept for later calls, and open requests. Nil: each session has its own
	// bounds, 256 MiB and 512 MiB.
	Memory  *gate.Memory
	Metrics *telemetry.Rollouts // nil: none
	Traces  *traces.Tracer      // nil: none
	// TraceContent adds the messages of model calls, and the arguments and results of
	// tools, to spans.
	TraceContent bool
	CallMetrics  *traces.CallMetrics // nil: none
	Log          zerolog.Logger
	Person       rollout.Person // does the rollouts of agents.Person; nil: there is none
	Reach        *reach.Host    // serves the sandboxes to commands of the user, or of operators; nil: none does
	Keep         rollout.Keep   // needs Reach
}

// Worker takes jobs and runs them.
type Worker struct {
	cfg       Config
	queue     *queue.Worker
	calls     *modelcall.Client
	snapshots *place.Snapshots
	busy      atomic.Int64 // slots with a job
	taking    sync.RWMutex // locked for reading while a slot waits for a job
	shells    shells
	sweeps    sweeps
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
	if c.Room == nil {
		c.Room = NewRoom(RoomConfig{})
	}
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.SweepWait == 0 {
		c.SweepWait = sweepFor
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
	return &Worker{cfg: c, queue: q, calls: client, snapshots: snapshots, sweeps: sweeps{wait: c.SweepWait}}, nil
}

// Run takes and runs jobs until the context ends. Then it takes no new jobs,
// lets running rollouts end within the grace period, and puts the others back into
// the queue without spending a try. If another process of this worker asks for the turn,
// it takes no new jobs, and ends when the running ones have ended. When Run returns, all
// its sandboxes are closed and its goroutines have ended.
func (w *Worker) Run(ctx context.Context) error {
	defer w.sweeps.running.Wait()
	taking, stopTaking := context.WithCancel(ctx)
	defer stopTaking()
	var swept []<-chan struct{}
	if err := w.cfg.Process.Start(w.queue.Instance(), w.cfg.Slots, func(place int) { swept = append(swept, w.sweep(taking, place)...) }); err != nil {
		return err
	}
	// Old sandboxes are removed before queue.Run releases the former instances' rollouts.
	w.sweeps.await(ctx, swept)
	w.cfg.Room.look() // at the other processes, which Start has found
	alive, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	var bg sync.WaitGroup
	var queueErr error
	bg.Go(func() { queueErr = w.queue.Run(alive) })
	bg.Go(func() { w.snapshots.Run(alive) })
	bg.Go(func() { w.cfg.Room.Run(alive) })
	w.sweeps.running.Go(func() { w.cfg.Process.Watch(taking, w.bury) })
	bg.Go(func() { w.cfg.Health.run(taking) })
	for _, b := range w.cfg.Backends {
		if keeper, ok := b.(sandboxes.CacheKeeper); ok {
			bg.Go(func() {
				keeper.KeepCache(taking, func(err error) {
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
			for w.one(ctx, taking, work, ending) {
			}
		})
	}
	drained := make(chan struct{})
	bg.Go(func() { slots.Wait(); close(drained) })
	asked := w.cfg.Process.Asked()
	select {
	case <-ctx.Done():
	case <-asked:
		asked = nil
		stopTaking()
		w.retire(ctx)
		select {
		case <-ctx.Done():
		case <-drained:
		}
	}
	if ctx.Err() != nil {
		w.cfg.Log.Info().Int64("running", w.busy.Load()).Msgf("stopping: no new rollouts are taken; those that run have %v, or until another signal, and then go back into the queue", w.cfg.Grace)
		w.queue.Drain(ctx)
		bg.Go(func() {
			wait(w.cfg.Grace, drained, w.cfg.Hurry)
			stopWork(ErrDrained)
			wait(endFor, drained, nil)
			giveUp(ErrDrained)
		})
		select { // a process that follows needs not wait for the grace period
		case <-drained:
		case <-asked:
			w.retire(ctx)
		}
	}
	<-drained
	leave()
	bg.Wait()
	if queueErr != nil {
		w.cfg.Log.Warn().Err(queueErr).Msg("the others were not told that this worker has left: they know it when its lease has expired, or from the worker's next process")
	} else {
		w.cfg.Process.Ended()
	}
	return nil
}

// one takes a job when the host has room for it, and runs it. It returns false when
// taking has ended.
func (w *Worker) one(ctx, taking, work, ending context.Context) bool {
	job, seat := w.take(taking)
	if job == nil {
		return taking.Err() == nil
	}
	defer seat.leave()
	defer w.left()
	w.runJob(ctx, work, ending, job, seat.started)
	return true
}

// take waits for room on the host, and for a job; nil: there was no more room, or ctx has
// ended. The caller calls left, and leave of the seat.
func (w *Worker) take(ctx context.Context) (*queue.Job, *seat) {
	w.taking.RLock()
	defer w.taking.RUnlock()
	take, seat, err := w.cfg.Room.enter(ctx)
	if err != nil {
		return nil, nil
	}
	job, err := w.queue.Take(take)
	if err != nil {
		seat.leave()
		return nil, nil
	}
	seat.took()
	w.busy.Add(1)
	return job, seat
}

// Ready returns nil if the worker can take rollouts, and otherwise the reason.
func (w *Worker) Ready() error { return w.queue.Ready() }

// State returns the present state of the worker.
func (w *Worker) State() telemetry.Worker {
	s := telemetry.Worker{Slots: w.cfg.Slots, Busy: int(w.busy.Load()), Suspended: w.queue.Suspended(), Ready: w.queue.Ready() == nil, Holds: w.queue.Holds(), Failing: map[string]bool{}}
	failing := w.cfg.Health.failing()
	for _, b := range w.cfg.Backends {
		_, s.Failing[b.Name()] = failing[b.Name()]
	}
	s.Full, s.Memory, s.Disk = w.cfg.Room.state()
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
		Backends: []string{}, Failing: c.Health.failing(), Agents: []string{}, Networks: c.Caps.Networks, GPUs: c.Caps.GPUs, CPUs: c.Caps.CPUs, MemoryBytes: c.Caps.MemoryBytes, DiskBytes: c.Caps.DiskBytes, Pids: c.Caps.Pids,
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

// runJob runs one job and ends it. It calls started when its sandboxes are made. From
// here on all that is reported of the rollout passes its record. stopping ends when the worker
// begins to stop.
func (w *Worker) runJob(stopping, work, ending context.Context, job *queue.Job, started func()) {
	ctx, span := w.cfg.Traces.Begin(work, job.Subject(), job.Attempt, job.Before)
	rec := record.New(&job.Request, job.Attempt, w.queue.ID(), record.Exits{
		Emit: job.Emit, Live: job.Live, Put: job.KeepArtifact, Spool: w.cfg.Spool, Telemetry: w.cfg.Metrics,
		Log: traces.Log(ctx, w.cfg.Log.With().Str("rollout", string(job.Request.ID)).Int("attempt", job.Attempt)).Logger(),
	})
	defer rec.Files.Close()
	log := &rec.Log
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(job.Context(), func() { cancel(context.Cause(job.Context())) }) //nolint:contextcheck // joins the contexts of the job and the worker
	defer stop()
	log.Info().Str("agent", job.Request.Agent.Name).Str("task", job.Request.Task.Name).Msg("rollout begins")
	over := w.shells.begin(ctx, job.Request.ID, rec)
	begun := false
	err := w.rollout(ctx, job, rec, func() {
		begun = true
		w.cfg.Health.made(job.Request.Sandbox.Backend)
		started()
	})
	over()
	if err == nil && stopping.Err() != nil && terminated(rec.Result()) {
		err = ErrDrained
	}
	_, commit := traces.Start(ctx, "commit")
	var end traces.End
	var broken *ends.Broken
	switch {
	case err == nil:
		result := rec.Result()
		end = traces.End{Status: string(result.Status), Fault: result.Fault, Reward: result.Reward}
		log.Info().Str("status", string(result.Status)).Msg("rollout ended")
		err = job.Done(ending, result)
	case errors.Is(err, queue.ErrFenced):
		job.Abandon()
		log.Warn().Msg("rollout dropped, it is another attempt's by now")
		return
	case errors.Is(err, queue.ErrCancelled):
		log.Info().Msg("rollout cancelled")
		end.Status = string(schema.StatusCancelled)
		err = job.Done(ending, queue.Cancelled(rec.Result()))
	case errors.Is(err, ErrDrained):
		log.Info().Msg("rollout put back, the worker stops")
		end.Status = "returned"
		err = job.Return(ending, nil, true, 0)
	case errors.As(err, &broken):
		log.Warn().Err(err).Msg("rollout broke, it is put back")
		end = traces.End{Status: "broken", Fault: record.Masked(rec, broken.Fault)}
		err = job.Return(ending, end.Fault, w.cfg.Health.failed(job.Request.ID, begun, broken.Service), 2*time.Second)
	default:
		log.Error().Err(err).Msg("rollout ended without a reason")
		end = traces.End{Status: "broken", Fault: record.Masked(rec, schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "%v", err))}
		err = job.Return(ending, end.Fault, false, 2*time.Second)
	}
	if err != nil { // the worker that takes the rollout over makes the span of this attempt
		log.Error().Err(err).Msg("rollout could not be ended; its request comes back")
		return
	}
	commit.End()
	span.End(end)
}

// terminated reports whether SIGTERM ended a command of a rollout although this worker had not
// sent it. While a worker stops it is the host's, which sends it to all processes of a service
// or of a job of Slurm: then the result says nothing of the agent.
func terminated(r schema.Result) bool {
	switch {
	case r.Fault == nil:
	case r.Fault.Code == schema.CodeExit, r.Fault.Code == schema.CodeSetup, r.Fault.Code == schema.CodeNoReward:
	default: // its own end
		return false
	}
	return slices.ContainsFunc(r.Phases, func(p schema.Phase) bool {
		return p.Exit != nil && !p.Exit.TimedOut && p.Exit.Code == 128+int(syscall.SIGTERM)
	})
}

// rollout runs one job.
func (w *Worker) rollout(ctx context.Context, job *queue.Job, rec *record.Record, started func()) error {
	caller := w.calls.Caller(job.Request, job)
	r := &rollout.Rollout{
		Request: job.Request, Attempt: job.Attempt, Record: rec, Owner: w.owner(w.cfg.Process.Place()), Backends: w.cfg.Backends, Agents: w.cfg.Agents, Cache: w.cfg.Cache, Upstreams: w.cfg.Upstreams, Caps: w.cfg.Caps, Prices: w.cfg.Prices,
		Timing: w.cfg.Timing, Memory: w.cfg.Memory, Snapshots: w.snapshots, Person: w.cfg.Person, Reach: w.cfg.Reach, Keep: w.cfg.Keep, TraceContent: w.cfg.TraceContent, CallMetrics: w.cfg.CallMetrics, Started: started,
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
