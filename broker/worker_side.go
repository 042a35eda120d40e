package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// ErrCancelled is the cause of a job's context when its trainer ended it.
var ErrCancelled = errors.New("cancelled by its trainer")

// WorkerSide is what one worker instance does with the broker: take jobs, ask
// for model calls, tell events, keep artifacts.
type WorkerSide struct {
	*Broker
	wid, instance string
	log           zerolog.Logger

	bodies sync.Pool // of *[]byte: encoded calls, which live until they are answered

	idle sync.Mutex // held by the one slot that waits for a job

	mu      sync.Mutex
	inboxes map[string]chan *nats.Msg             // by token: calls that wait for frames
	running map[schema.ID]context.CancelCauseFunc // jobs held here
	ended   map[schema.ID]time.Time               // cancels for jobs that are not here (yet)
	subs    []*nats.Subscription
}

// WorkerSide opens the worker's face of the broker. wid is the worker's stable
// name, instance names this run of its process.
func (b *Broker) WorkerSide(wid, instance string) (*WorkerSide, error) {
	if err := schema.CheckToken("worker", wid); err != nil {
		return nil, err
	}
	if err := schema.CheckToken("instance", instance); err != nil {
		return nil, err
	}
	w := &WorkerSide{
		Broker: b, wid: wid, instance: instance, log: b.log.With().Str("worker", wid).Logger(),
		inboxes: map[string]chan *nats.Msg{}, running: map[schema.ID]context.CancelCauseFunc{}, ended: map[schema.ID]time.Time{},
	}
	for subject, handle := range map[string]nats.MsgHandler{
		subjects.GateInboxes(wid, instance): w.onFrame,
		subjects.CancelFilter:               w.onCancel,
	} {
		sub, err := b.calls.Subscribe(subject, handle)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		if err := sub.SetPendingLimits(1<<20, 512<<20); err != nil {
			w.Close()
			return nil, fmt.Errorf("bound the subscription to %s: %w", subject, err)
		}
		w.subs = append(w.subs, sub)
	}
	if err := b.calls.FlushTimeout(5 * time.Second); err != nil {
		w.Close()
		return nil, fmt.Errorf("reach NATS: %w", err)
	}
	return w, nil
}

// Close ends the subscriptions. The broker stays open.
func (w *WorkerSide) Close() {
	for _, s := range w.subs {
		_ = s.Unsubscribe()
	}
}

// ID is the worker's stable name.
func (w *WorkerSide) ID() string { return w.wid }

// Instance names this run of the worker's process.
func (w *WorkerSide) Instance() string { return w.instance }

const (
	maxRememberedCancels = 10_000
	rememberCancels      = 10 * time.Minute
)

func (w *WorkerSide) onCancel(m *nats.Msg) {
	trainer, ok := subjects.ParseTrainerCancel(m.Subject)
	var c schema.Cancel
	if !ok || schema.Decode(m.Data, &c) != nil {
		w.log.Warn().Str("subject", m.Subject).Msg("a cancel that cannot be read was dropped")
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, id := range c.IDs {
		if id.Trainer() != trainer {
			continue
		}
		if cancel := w.running[id]; cancel != nil {
			cancel(ErrCancelled)
			continue
		}
		if len(w.ended) >= maxRememberedCancels {
			for old, at := range w.ended {
				if now.Sub(at) > rememberCancels {
					delete(w.ended, old)
				}
			}
		}
		if len(w.ended) < maxRememberedCancels {
			w.ended[id] = now
		}
	}
}

func (w *WorkerSide) cancelled(id schema.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.ended[id]
	return ok && time.Since(at) < rememberCancels
}

func (w *WorkerSide) onFrame(m *nats.Msg) {
	w.mu.Lock()
	inbox := w.inboxes[subjects.InboxToken(m.Subject)]
	w.mu.Unlock()
	if inbox == nil {
		return // a late frame of a call that is settled
	}
	select {
	case inbox <- m:
	default: // the call sees the gap in the sequence and asks again
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

// Announce keeps this instance's presence entry alive for another 40 s.
func (w *WorkerSide) Announce(ctx context.Context, p schema.Presence) error {
	p.V, p.Worker, p.Instance = schema.Version, w.wid, w.instance
	data, err := schema.Encode(&p)
	if err != nil {
		return err
	}
	kv, err := w.js.KeyValue(ctx, bucketWorkers)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", bucketWorkers, err)
	}
	if _, err := kv.Put(ctx, w.wid, data); err != nil {
		return fmt.Errorf("announce worker %s: %w", w.wid, err)
	}
	return nil
}

// Leave removes the presence entry.
func (w *WorkerSide) Leave(ctx context.Context) error {
	kv, err := w.js.KeyValue(ctx, bucketWorkers)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", bucketWorkers, err)
	}
	return kv.Delete(ctx, w.wid)
}
