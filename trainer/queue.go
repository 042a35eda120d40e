package trainer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

const (
	// queuedLong is the time in the queue after which a wait is reported.
	queuedLong = 2 * time.Second
	// queueEvery is the interval of checks of the queue.
	queueEvery = 2 * time.Second
	// maxQueued bounds the rollouts with a reported wait, the oldest first.
	maxQueued = 64
)

// queueReporter reports the reasons why rollouts stay in the queue. Workers report all
// later waits.
type queueReporter struct {
	t      *Trainer
	handle func(schema.Event)

	mu    sync.Mutex
	waits map[schema.ID]*queued
}

type queued struct {
	since, told time.Time
	note        string
}

// Watch calls handle, one event at a time, with the phases and waits of this
// trainer's rollouts until stop is called. They include rollouts that no worker
// has taken. Events may be lost.
func (t *Trainer) Watch(handle func(schema.Event)) (stop func(), err error) {
	var one sync.Mutex // one event at a time
	q := &queueReporter{t: t, waits: map[schema.ID]*queued{}, handle: func(e schema.Event) {
		one.Lock()
		defer one.Unlock()
		handle(e)
	}}
	unsubscribe, err := t.requests.Results.Watch(func(e schema.Event) {
		t.sawAttempt(e.Rollout, e.Attempt)
		q.taken(e.Rollout)
		q.handle(e)
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(t.life)
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.run(ctx)
	}()
	return func() {
		cancel()
		unsubscribe()
		<-done
	}, nil
}

func (q *queueReporter) run(ctx context.Context) {
	tick := time.NewTicker(queueEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			q.look(ctx)
		}
	}
}

// look reports the rollouts that no worker has taken.
func (q *queueReporter) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	waiting := q.waiting()
	q.t.mu.Lock()
	var gone []schema.ID
	q.mu.Lock()
	for id := range q.waits {
		if s := q.t.outstanding[id]; s == nil || s.attempt > 0 {
			gone = append(gone, id)
		}
	}
	q.mu.Unlock()
	q.t.mu.Unlock()
	for _, id := range gone {
		q.taken(id)
	}
	if len(waiting) == 0 {
		return
	}
	fleet, err := q.t.requests.Fleet(ctx)
	if err != nil {
		q.t.cfg.Log.Debug().Err(err).Msg("not known which workers are there")
		return
	}
	for _, s := range waiting {
		id := s.request.ID
		if q.known(id) == nil && !q.isQueued(ctx, id) {
			continue
		}
		q.tell(id, s.at, fleet.Queued(&s.request))
	}
}

// waiting lists the oldest rollouts that no worker has taken, as far as this
// process knows.
func (q *queueReporter) waiting() []submitted {
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	var all []submitted
	for _, s := range q.t.outstanding {
		if s.attempt == 0 && !s.at.IsZero() && time.Since(s.at) > queuedLong {
			all = append(all, *s)
		}
	}
	slices.SortFunc(all, func(a, b submitted) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.request.ID, b.request.ID))
	})
	return all[:min(len(all), maxQueued)]
}

// isQueued reads whether a rollout is still queued, because the events of its
// start may be lost.
func (q *queueReporter) isQueued(ctx context.Context, id schema.ID) bool {
	state, err := q.t.requests.Records.State(ctx, id)
	if errors.Is(err, broker.ErrNotFound) {
		return true
	}
	if err == nil {
		q.t.sawAttempt(id, state.Attempt)
	}
	return err == nil && state.Status == schema.StatusQueued
}

func (q *queueReporter) known(id schema.ID) *queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waits[id]
}

// tell reports a wait when it begins, when the reason changes, and every 30 s.
func (q *queueReporter) tell(id schema.ID, since time.Time, note string) {
	q.mu.Lock()
	w := q.waits[id]
	if w == nil {
		w = &queued{since: since}
		q.waits[id] = w
	}
	now := time.Now()
	fresh := w.note != note || now.Sub(w.told) > 30*time.Second
	if fresh {
		w.note, w.told = note, now
	}
	q.mu.Unlock()
	if fresh {
		q.emit(id, schema.WaitEvent{For: schema.WaitWorker, Note: note, MS: now.Sub(since).Milliseconds()})
	}
}

// taken reports the end of a wait.
func (q *queueReporter) taken(id schema.ID) {
	q.mu.Lock()
	w := q.waits[id]
	delete(q.waits, id)
	q.mu.Unlock()
	if w != nil {
		q.emit(id, schema.WaitEvent{For: schema.WaitWorker, MS: time.Since(w.since).Milliseconds(), Ended: true})
	}
}

func (q *queueReporter) emit(id schema.ID, w schema.WaitEvent) {
	q.handle(schema.Event{V: schema.Version, Type: schema.EventWait, Rollout: id, At: time.Now().UnixMilli(), Wait: &w})
}
