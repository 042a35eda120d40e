package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// WorkerConfig describes a worker to the broker.
type WorkerConfig struct {
	Worker   string // its stable name
	Instance string // this run of its process
	Version  string
	Slots    int                 // rollouts at once; default 1
	Offer    func() schema.Offer // what it can run; nil: anything
	Timing   Timing              // default DefaultTiming
	// Retention is how long finished rollouts and their artifacts are kept; 0: for
	// ever.
	Retention time.Duration
}

// WorkerSide is what one worker instance does with the broker: take jobs, show
// that it is alive, ask for model calls, tell events, keep artifacts. Nothing
// is taken before Run.
type WorkerSide struct {
	*Broker
	cfg           WorkerConfig
	wid, instance string
	timing        Timing
	inbox         string
	log           zerolog.Logger

	bodies sync.Pool // of *[]byte: encoded calls, which live until they are answered

	lanes    *lanes
	pollers  chan *poller   // those that are free, one for each slot
	idle     chan struct{}  // held by the one slot that waits for a job
	handed   chan *delivery // requests that other workers could not run
	handover *handover
	unfit    unfit
	fleet    fleet
	holds    holds
	standing *switchable // on: this instance's lease is in doubt
	cancels  chan wish
	audits   chan schema.ID
	news     chan struct{} // has room for one: a job began

	closed  chan struct{}
	watches sync.WaitGroup

	mu      sync.Mutex
	inboxes map[string]*mailbox // by token: calls that wait for frames
	tokens  tokens
	jobs    map[schema.ID]*Job
	subs    []*nats.Subscription
}

// WorkerSide opens the worker's face of the broker.
func (b *Broker) WorkerSide(c WorkerConfig) (*WorkerSide, error) {
	if err := schema.CheckToken("worker", c.Worker); err != nil {
		return nil, err
	}
	if err := schema.CheckToken("instance", c.Instance); err != nil {
		return nil, err
	}
	c.Slots = max(c.Slots, 1)
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming()
	}
	w := &WorkerSide{
		Broker: b, cfg: c, wid: c.Worker, instance: c.Instance, timing: c.Timing, inbox: b.inbox, log: b.log.With().Str("worker", c.Worker).Logger(),
		lanes: newLanes(), pollers: make(chan *poller, c.Slots+16), idle: make(chan struct{}, 1), handed: make(chan *delivery, c.Slots), standing: newSwitch(),
		unfit: unfit{wanting: map[schema.ID]*wanting{}}, cancels: make(chan wish, 256), audits: make(chan schema.ID, 256), news: make(chan struct{}, 1), holds: newHolds(),
		inboxes: map[string]*mailbox{}, jobs: map[schema.ID]*Job{}, closed: make(chan struct{}),
	}
	w.watches.Go(w.watch)
	w.handover = &handover{w: w, waiting: map[*delivery]time.Time{}}
	w.standing.set(true) // until Run has confirmed the lease
	for _, s := range []struct {
		nc             *nats.Conn
		subject, group string
		handle         nats.MsgHandler
	}{
		{b.calls, subjects.GateInboxes(c.Worker, c.Instance), "", w.onFrame},
		{b.bulk, subjects.CancelFilter, subjects.CancelGroup, w.onCancel},
		{b.bulk, subjects.HoldFilter, subjects.CancelGroup, w.onHold},
		{b.bulk, subjects.HoldsFilter, "", w.onHeld},
		{b.bulk, subjects.WorkerControl(c.Worker), "", w.onControl},
	} {
		sub, err := s.nc.QueueSubscribe(s.subject, s.group, s.handle)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("subscribe to %s: %w", s.subject, err)
		}
		w.subs = append(w.subs, sub)
		if err := sub.SetPendingLimits(1<<20, 512<<20); err != nil {
			w.Close()
			return nil, fmt.Errorf("bound the subscription to %s: %w", s.subject, err)
		}
	}
	for _, nc := range []*nats.Conn{b.calls, b.bulk} {
		if err := nc.FlushTimeout(opTimeout); err != nil {
			w.Close()
			return nil, fmt.Errorf("reach NATS: %w", err)
		}
	}
	return w, nil
}

// KeepArtifact keeps a file of a rollout for at least as long as the rollout.
func (w *WorkerSide) KeepArtifact(ctx context.Context, name string, data []byte) (schema.Artifact, error) {
	return w.PutArtifact(ctx, name, data, w.cfg.Retention)
}

// Run frees what this worker's former instance held, and then shows that this
// one is alive, until the context ends. Jobs must be settled before that. Run
// then tells the others that this instance is gone.
func (w *WorkerSide) Run(ctx context.Context) error {
	for try := 0; ; try++ {
		err := w.succeed(ctx)
		if err == nil {
			break
		}
		w.log.Warn().Err(err).Msg("the former instance's rollouts are not freed yet")
		if pause(ctx, backoff(try)) != nil {
			return nil
		}
	}
	var all sync.WaitGroup
	for _, f := range []func(context.Context){w.keep, w.progress, w.announce, w.serveCancels, w.serveAudits, w.tidy, w.seek} {
		all.Go(func() { f(ctx) })
	}
	all.Wait()
	w.handover.close()
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return errors.Join(w.writeLease(op, w.instance, leaseValueEnded), w.leave(op))
}

// Drain says that nothing new is taken any more.
func (w *WorkerSide) Drain(ctx context.Context) {
	w.handover.close()
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := w.present(op, true); err != nil {
		w.log.Debug().Err(err).Msg("the drain was not announced")
	}
}

// leave removes the presence entry.
func (w *WorkerSide) leave(ctx context.Context) error {
	s, err := w.stream(ctx, subjects.StreamWorkers)
	if err != nil {
		return err
	}
	m, err := w.last(ctx, subjects.StreamWorkers, subjects.Presence(w.wid))
	if m == nil || err != nil {
		return err
	}
	if err := s.DeleteMsg(ctx, m.Sequence); err != nil {
		return fmt.Errorf("remove the presence of %s: %w", w.wid, err)
	}
	return nil
}

// Close ends the subscriptions. The broker stays open.
func (w *WorkerSide) Close() {
	close(w.closed)
	w.watches.Wait()
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

// ID is the worker's stable name.
func (w *WorkerSide) ID() string { return w.wid }

// Instance names this run of the worker's process.
func (w *WorkerSide) Instance() string { return w.instance }

func (w *WorkerSide) onFrame(m *nats.Msg) {
	w.mu.Lock()
	inbox := w.inboxes[subjects.InboxToken(m.Subject)]
	w.mu.Unlock()
	if inbox == nil {
		return // a late frame of a call that is settled
	}
	if !inbox.put(m) {
		w.log.Warn().Str("subject", m.Subject).Msg("a frame was dropped, its call is read too slowly")
	}
}

// watchEvery is how often calls are looked at for silence. A timer for each
// call would cost more than all else that a call does here.
const watchEvery = 250 * time.Millisecond

// watch wakes calls that heard nothing for too long.
func (w *WorkerSide) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.closed:
			return
		case now := <-tick.C:
			w.mu.Lock()
			all := slices.Collect(maps.Values(w.inboxes))
			w.mu.Unlock()
			for _, b := range all {
				b.late(now)
			}
		}
	}
}

// Emit tells those who watch. It never waits and never fails the caller.
func (w *WorkerSide) Emit(e *schema.Event) {
	e.V, e.At = schema.Version, nowMS()
	data, err := schema.Encode(e)
	if err == nil {
		if err = checkSize(w.bulk, "event", len(data)); err != nil && e.LLM != nil {
			short := *e.LLM
			short.Call, short.Reply, short.Note = nil, nil, err.Error()
			e.LLM = &short
			if data, err = schema.Encode(e); err == nil {
				err = checkSize(w.bulk, "event", len(data))
			}
		}
	}
	if err == nil {
		err = w.bulk.Publish(subjects.Event(e.Rollout, e.Type), data)
	}
	if err != nil {
		w.log.Debug().Err(err).Str("rollout", string(e.Rollout)).Msg("an event was not published")
	}
}

// Live shows a piece of an answer to whoever watches at this moment. It is
// kept nowhere.
func (w *WorkerSide) Live(id schema.ID, attempt, call int, d *schema.Delta) {
	data, err := schema.Encode(d)
	if err == nil {
		err = w.bulk.PublishMsg(&nats.Msg{Subject: subjects.Live(id, attempt), Header: nats.Header{subjects.HeaderCall: {strconv.Itoa(call)}}, Data: data})
	}
	if err != nil {
		w.log.Debug().Err(err).Str("rollout", string(id)).Msg("a delta was not shown")
	}
}
