// Package queue brings requests from trainers to workers and results back. A Trainer
// submits requests and reads results. A Worker takes requests as jobs, under a lease,
// and commits their results. The state record of a rollout decides: decide is a
// function of it, and resolve carries the decision out.
package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// WorkerConfig describes a worker.
type WorkerConfig struct {
	Worker   string // its stable name
	Instance string // name of this run of its process
	Version  string
	Slots    int                 // rollouts at once; default 1
	Shells   bool                // this worker runs commands of operators
	Offer    func() schema.Offer // its current offer; nil: it can run every request
	Load     func() *schema.Load // of the worker and its host; nil: it is not announced
	Full     func() string       // reason for which the worker takes no request now, "" if it does; nil: it always does
	// Lives reports whether another process of this worker still runs as an instance; nil:
	// none does.
	Lives  func(instance string) bool
	Timing broker.Timing // default DefaultTiming
	// Retention is the time that finished rollouts and their artifacts are kept;
	// 0: for ever.
	Retention time.Duration
	Metrics   *telemetry.Queue // nil: none
	Traces    *traces.Tracer   // nil: none
}

// Worker is the client for one worker instance. It takes jobs and renews the lease. It
// takes no job before Run.
type Worker struct {
	*base
	leases   *leases
	fleet    *fleet
	holds    *holds
	roster   *roster
	puller   *puller
	slots    *dispatcher
	resolver *resolver
	requests *requests
	parking  *parking
	cancels  *cancels
	attaches *attaches
	janitor  *janitor
	control  *control
	subs     []*nats.Subscription
}

// NewWorker returns the client for a worker instance. Close it after use. If the
// server denies a subscription, the error wraps broker.ErrNotAllowed.
func NewWorker(b *broker.Broker, c WorkerConfig) (*Worker, error) {
	if err := schema.CheckToken("worker", c.Worker); err != nil {
		return nil, err
	}
	if err := schema.CheckToken("instance", c.Instance); err != nil {
		return nil, err
	}
	c.Slots = max(c.Slots, 1)
	if c.Timing == (broker.Timing{}) {
		c.Timing = broker.DefaultTiming()
	}
	w := newWorker(&base{broker: b, cfg: c, wid: c.Worker, instance: c.Instance, timing: c.Timing, log: b.Log().With().Str("worker", c.Worker).Logger()})
	b.Streams.ReopenWith(w.roster.reopen)
	w.leases.suspended.set(true) // until Run has confirmed the lease
	for _, s := range []struct {
		subject, group string
		handle         nats.MsgHandler
	}{
		{subjects.CancelFilter, subjects.CancelGroup, w.cancels.onAsked},
		{subjects.HoldFilter, subjects.CancelGroup, w.holds.onAsked},
		{subjects.HoldsFilter, "", w.holds.onHold},
		{subjects.FleetFilter, subjects.CancelGroup, w.fleet.onAsked},
		{subjects.OpenFilter, subjects.CancelGroup, w.roster.onOpen},
		{subjects.AttachFilter, subjects.CancelGroup, w.attaches.onAsked},
		{subjects.WorkerTrainers, "", w.roster.onTrainers},
		{subjects.WorkerControl(c.Worker), "", w.control.onAsked},
	} {
		sub, err := b.BulkConn().QueueSubscribe(s.subject, s.group, s.handle)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("subscribe to %s: %w", s.subject, err)
		}
		w.subs = append(w.subs, sub)
		if err := wire.Limit(sub); err != nil {
			w.Close()
			return nil, err
		}
	}
	if err := broker.Confirm(b.BulkConn()); err != nil {
		w.Close()
		return nil, fmt.Errorf("worker %s: %w", c.Worker, err)
	}
	return w, nil
}

// newWorker joins the parts of a worker.
func newWorker(b *base) *Worker {
	jobs, lanes, holds := newJobs(b.wid, b.instance), newLanes(), newHolds(b)
	fleet := &fleet{base: b, jobs: jobs, turn: make(chan struct{}, 1)}
	leases := &leases{base: b, jobs: jobs, fleet: fleet, suspended: newSwitch()}
	roster := newRoster(b, lanes)
	puller := newPuller(b, lanes, roster)
	resolver := &resolver{base: b, jobs: jobs, leases: leases, holds: holds, roster: roster, writes: &writes{b}, spans: &spans{b}}
	requests := &requests{b, resolver}
	return &Worker{
		base: b, leases: leases, fleet: fleet, holds: holds, roster: roster, puller: puller, slots: newDispatcher(puller, leases.suspended), resolver: resolver, requests: requests,
		parking: &parking{base: b, resolver: resolver, requests: requests, fleet: fleet, unfit: unfit{wanting: map[schema.ID]*wanting{}}}, cancels: newCancels(resolver), attaches: newAttaches(b),
		janitor: &janitor{base: b, resolver: resolver, requests: requests, puller: puller}, control: newControl(resolver),
	}
}

// Run releases the rollouts of this worker's former instances, and then keeps the
// lease and serves other workers and trainers until the context ends. End all
// jobs before ending the context. At the end Run ends the lease, so that other
// workers know at once that this instance is gone.
func (w *Worker) Run(ctx context.Context) error {
	if w.insist(ctx, w.leases.retirePredecessors) != nil {
		return nil
	}
	var all sync.WaitGroup
	for _, f := range []func(context.Context){w.leases.renew, w.leases.progress, w.fleet.announce, w.cancels.serve, w.attaches.serve, w.control.serve, w.janitor.run, w.parking.seek, w.roster.run, w.roster.serve} {
		all.Go(func() { f(ctx) })
	}
	all.Wait()
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
	defer cancel()
	put := w.broker.BulkConn().FlushWithContext(op) // the requests that went back
	return errors.Join(put, w.leases.write(op, w.instance, leaseValueEnded), w.fleet.leave(op, w.instance))
}

// Bury releases the rollouts of another instance of this worker, of which the caller knows
// that no process runs as it any more. It tries until it succeeds or the context ends.
func (w *Worker) Bury(ctx context.Context, instance string) error {
	return w.insist(ctx, func(ctx context.Context) error { return w.leases.bury(ctx, instance) })
}

// insist frees rollouts of other instances. It tries until it succeeds, or returns the cause
// of the context's end.
func (w *Worker) insist(ctx context.Context, free func(context.Context) error) error {
	for try := 0; ; try++ {
		err := free(ctx)
		if err == nil {
			return nil
		}
		w.log.Warn().Err(err).Msg("the rollouts of an instance that has ended are not freed yet")
		if err := wire.Pause(ctx, wire.Backoff(try)); err != nil {
			return err
		}
	}
}

// Drain announces that this worker takes no new requests.
func (w *Worker) Drain(ctx context.Context) {
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	w.fleet.draining.Store(true)
	if err := w.fleet.present(op); err != nil {
		w.log.Debug().Err(err).Msg("the drain was not announced")
	}
}

// Close ends the subscriptions. The broker stays open.
func (w *Worker) Close() {
	for _, s := range w.subs {
		_ = s.Unsubscribe()
	}
	w.puller.close()
}

// Ready returns nil if this worker can take requests, and otherwise the reason.
func (w *Worker) Ready() error {
	suspended, _ := w.leases.suspended.get()
	switch {
	case w.fleet.draining.Load():
		return errors.New("it takes no more requests, since it stops")
	case !w.broker.Connected():
		return errors.New("it has no connection to NATS")
	case suspended:
		return errors.New("its lease is not renewed")
	}
	return nil
}

// Suspended reports whether all jobs stand still, since the lease is not renewed.
func (w *Worker) Suspended() bool {
	suspended, _ := w.leases.suspended.get()
	return suspended
}

// Holds returns the number of trainers that hold rollouts now.
func (w *Worker) Holds() int { return w.holds.count() }

// ID returns the worker's stable name.
func (w *Worker) ID() string { return w.wid }

// Instance returns the name of this run of the worker's process.
func (w *Worker) Instance() string { return w.instance }
