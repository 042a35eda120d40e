// Package queue brings requests from trainers to workers and results back. A Trainer
// submits requests and reads results. A Worker takes requests as jobs, under a lease,
// and commits their results. The state record of a rollout decides: decide is a
// function of it, and resolve carries the decision out.
package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// WorkerConfig describes a worker.
type WorkerConfig struct {
	Worker   string // its stable name
	Instance string // name of this run of its process
	Version  string
	Slots    int                 // rollouts at once; default 1
	Offer    func() schema.Offer // its current offer; nil: it can run every request
	Timing   broker.Timing       // default DefaultTiming
	// Retention is the time that finished rollouts and their artifacts are kept;
	// 0: for ever.
	Retention time.Duration
}

// Worker is the client for one worker instance. It takes jobs, renews the
// lease, publishes events and stores artifacts. It takes no job before Run.
type Worker struct {
	*base
	jobs     *jobs
	leases   *leases
	fleet    *fleet
	holds    *holds
	lanes    *lanes
	roster   *roster
	puller   *puller
	slots    *dispatcher
	parking  *parking
	cancels  *cancels
	attaches *attaches
	janitor  *janitor
	audits   chan schema.ID
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
	w := newWorker(&base{Broker: b, cfg: c, wid: c.Worker, instance: c.Instance, timing: c.Timing, log: b.Log().With().Str("worker", c.Worker).Logger()})
	b.ReopenWith(w.roster.reopen)
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
		{subjects.WorkerControl(c.Worker), "", w.onControl},
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
	w := &Worker{base: b, jobs: newJobs(b.wid, b.instance), holds: newHolds(b), lanes: newLanes(), audits: make(chan schema.ID, 256)}
	w.leases = &leases{base: b, jobs: w.jobs, suspended: newSwitch()}
	w.fleet = &fleet{base: b, jobs: w.jobs}
	w.roster = newRoster(b, w.lanes)
	w.puller = newPuller(b, w.lanes, w.roster)
	w.slots = newDispatcher(w.puller, w.leases.suspended)
	w.parking = &parking{w: w, unfit: unfit{wanting: map[schema.ID]*wanting{}}}
	w.cancels = newCancels(w)
	w.attaches = newAttaches(b)
	w.janitor = &janitor{w: w}
	return w
}

// KeepArtifact stores a file of a trainer's rollout, see PutArtifact. The file is
// kept at least as long as the rollout.
func (w *Worker) KeepArtifact(ctx context.Context, tid, name string, data []byte) (schema.Artifact, error) {
	return w.PutArtifact(ctx, tid, name, data, w.cfg.Retention)
}

// Run releases the rollouts of this worker's former instances, and then keeps the
// lease and serves other workers and trainers until the context ends. Settle all
// jobs before ending the context. At the end Run ends the lease, so that other
// workers know at once that this instance is gone.
func (w *Worker) Run(ctx context.Context) error {
	for try := 0; ; try++ {
		err := w.leases.retirePredecessors(ctx)
		if err == nil {
			break
		}
		w.log.Warn().Err(err).Msg("the former instance's rollouts are not freed yet")
		if wire.Pause(ctx, wire.Backoff(try)) != nil {
			return nil
		}
	}
	var all sync.WaitGroup
	for _, f := range []func(context.Context){w.leases.renew, w.leases.progress, w.fleet.announce, w.cancels.serve, w.attaches.serve, w.serveAudits, w.janitor.run, w.parking.seek, w.roster.run, w.roster.serve} {
		all.Go(func() { f(ctx) })
	}
	all.Wait()
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return errors.Join(w.leases.write(op, w.instance, leaseValueEnded), w.fleet.leave(op))
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

// ID returns the worker's stable name.
func (w *Worker) ID() string { return w.wid }

// Instance returns the name of this run of the worker's process.
func (w *Worker) Instance() string { return w.instance }

// Emit publishes an event. It does not wait for the server, and it only logs
// errors.
func (w *Worker) Emit(e *schema.Event) {
	e.V, e.At = schema.Version, nowMS()
	data, err := schema.Encode(e)
	if err == nil {
		if err = w.CheckSize("event", len(data)); err != nil && e.LLM != nil {
			short := *e.LLM
			short.Call, short.Reply, short.Note = nil, nil, err.Error()
			e.LLM = &short
			if data, err = schema.Encode(e); err == nil {
				err = w.CheckSize("event", len(data))
			}
		}
	}
	if err == nil {
		err = w.BulkConn().Publish(subjects.Event(e.Rollout, e.Type), data)
	}
	if err == nil && (e.Type == schema.EventPhase || e.Type == schema.EventWait) {
		err = w.BulkConn().Publish(subjects.TrainerEvents(e.Rollout.Trainer()), data)
	}
	if err != nil {
		w.log.Debug().Err(err).Str("rollout", string(e.Rollout)).Msg("an event was not published")
	}
}

// Live publishes a piece of an answer to the taps that watch now. It is not
// stored.
func (w *Worker) Live(id schema.ID, attempt, call int, d *schema.Delta) {
	data, err := schema.Encode(d)
	if err == nil {
		err = w.BulkConn().PublishMsg(&nats.Msg{Subject: subjects.Live(id, attempt), Header: nats.Header{subjects.HeaderCall: {strconv.Itoa(call)}}, Data: data})
	}
	if err != nil {
		w.log.Debug().Err(err).Str("rollout", string(id)).Msg("a delta was not shown")
	}
}
