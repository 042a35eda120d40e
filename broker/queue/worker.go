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
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/broker/internal/wire"
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
	*broker.Broker
	cfg           WorkerConfig
	wid, instance string
	timing        broker.Timing
	log           zerolog.Logger

	lanes     *lanes
	roster    *roster
	slots     *dispatcher
	pollers   chan *poller // free pollers
	unfit     unfit
	fleet     fleet
	holds     holds
	suspended *switchable // on while this instance's lease is in doubt
	draining  atomic.Bool // it takes no new requests
	cancels   *cancels
	audits    chan schema.ID
	news      chan struct{} // of capacity 1; has a value after a job began

	mu   sync.Mutex
	jobs map[schema.ID]*Job
	ran  map[schema.ID]int // attempts that began here, until their end is stored
	subs []*nats.Subscription
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
	w := &Worker{
		Broker: b, cfg: c, wid: c.Worker, instance: c.Instance, timing: c.Timing, log: b.Log().With().Str("worker", c.Worker).Logger(),
		lanes: newLanes(), pollers: make(chan *poller, 4), suspended: newSwitch(),
		unfit: unfit{wanting: map[schema.ID]*wanting{}}, cancels: newCancels(), audits: make(chan schema.ID, 256), news: make(chan struct{}, 1), holds: newHolds(),
		jobs: map[schema.ID]*Job{}, ran: map[schema.ID]int{},
	}
	w.roster = newRoster(w)
	w.slots = newDispatcher(w)
	b.ReopenWith(w.roster.reopen)
	w.suspended.set(true) // until Run has confirmed the lease
	for _, s := range []struct {
		subject, group string
		handle         nats.MsgHandler
	}{
		{subjects.CancelFilter, subjects.CancelGroup, w.onCancel},
		{subjects.HoldFilter, subjects.CancelGroup, w.onHold},
		{subjects.HoldsFilter, "", w.onHeld},
		{subjects.FleetFilter, subjects.CancelGroup, w.onFleet},
		{subjects.OpenFilter, subjects.CancelGroup, w.roster.onOpen},
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
		err := w.retirePredecessors(ctx)
		if err == nil {
			break
		}
		w.log.Warn().Err(err).Msg("the former instance's rollouts are not freed yet")
		if wire.Pause(ctx, wire.Backoff(try)) != nil {
			return nil
		}
	}
	var all sync.WaitGroup
	for _, f := range []func(context.Context){w.renewLease, w.progress, w.announce, w.serveCancels, w.serveAudits, w.tidy, w.seek, w.roster.run, w.roster.serve} {
		all.Go(func() { f(ctx) })
	}
	all.Wait()
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return errors.Join(w.writeLease(op, w.instance, leaseValueEnded), w.leave(op))
}

// Drain announces that this worker takes no new requests.
func (w *Worker) Drain(ctx context.Context) {
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	w.draining.Store(true)
	if err := w.present(op); err != nil {
		w.log.Debug().Err(err).Msg("the drain was not announced")
	}
}

// leave removes the presence entry.
func (w *Worker) leave(ctx context.Context) error {
	s, err := w.Stream(ctx, subjects.StreamWorkers)
	if err != nil {
		return err
	}
	m, err := w.Last(ctx, subjects.StreamWorkers, subjects.Presence(w.wid))
	if m == nil || err != nil {
		return err
	}
	if err := s.DeleteMsg(ctx, m.Sequence); err != nil {
		return fmt.Errorf("remove the presence of %s: %w", w.wid, err)
	}
	return nil
}

// Close ends the subscriptions. The broker stays open.
func (w *Worker) Close() {
	for _, s := range w.subs {
		_ = s.Unsubscribe()
	}
	for {
		select {
		case p := <-w.pollers:
			_ = p.sub.Unsubscribe()
		default:
			return
		}
	}
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
