package trainer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// watcher hands on the events of this trainer's rollouts, and reports the reasons why
// rollouts stay in the queue. Workers report all later waits.
type watcher struct {
	*base
	backlog  *backlog
	blockers *blockers
	handle   func(schema.Event)

	mu    sync.Mutex
	waits map[schema.ID]*queued
}

type queued struct {
	since, reported time.Time
	note            string
}

// newWatcher returns a watcher that calls handle with one event at a time.
func newWatcher(b *backlog, blockers *blockers, handle func(schema.Event)) *watcher {
	var one sync.Mutex
	return &watcher{base: b.base, backlog: b, blockers: blockers, waits: map[schema.ID]*queued{}, handle: func(e schema.Event) {
		one.Lock()
		defer one.Unlock()
		handle(e)
	}}
}

// start starts the watcher. It runs until stop is called.
func (w *watcher) start() (stop func(), err error) {
	unsubscribe, err := w.requests.Results.Watch(func(e schema.Event) {
		w.backlog.outstanding.sawAttempt(e.Rollout, e.Attempt)
		w.taken(e.Rollout)
		w.handle(e)
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(w.life)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	return func() {
		cancel()
		unsubscribe()
		<-done
	}, nil
}

func (w *watcher) run(ctx context.Context) {
	tick := time.NewTicker(queueEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look(ctx)
		}
	}
}

// look reports the rollouts that no worker has taken.
func (w *watcher) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	waiting := w.backlog.waiting()
	for _, id := range w.reported() {
		if s, ok := w.backlog.outstanding.get(id); !ok || s.attempt > 0 {
			w.taken(id)
		}
	}
	if len(waiting) == 0 {
		return
	}
	fleet, err := w.requests.Fleet(ctx)
	if err != nil {
		w.cfg.Log.Debug().Err(err).Msg("not known which workers are there")
		return
	}
	for _, s := range waiting {
		id := s.request.ID
		if !w.knows(id) && !w.backlog.isQueued(ctx, id) {
			continue
		}
		w.report(id, s.at, w.why(ctx, &fleet, &s))
	}
}

// why says why a rollout is still queued.
func (w *watcher) why(ctx context.Context, fleet *schema.Fleet, s *submitted) string {
	note := fleet.Queued(&s.request)
	if !fleet.HasFree(&s.request) {
		if has := w.blockers.text(ctx); has != "" {
			note += "; " + has
		}
		return note
	}
	if s.seq > 0 {
		if there, err := w.requests.Queued(ctx, s.request.ID, s.seq); err == nil && !there && w.backlog.isQueued(ctx, s.request.ID) {
			return fmt.Sprintf("the server has lost its request, which is submitted again within %s", w.cfg.AuditEvery)
		}
	}
	return note
}

// reported lists the rollouts with a wait that was reported.
func (w *watcher) reported() []schema.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.waits))
}

func (w *watcher) knows(id schema.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waits[id] != nil
}

// report reports a wait when it begins, when the reason changes, and every 30 s.
func (w *watcher) report(id schema.ID, since time.Time, note string) {
	w.mu.Lock()
	q := w.waits[id]
	if q == nil {
		q = &queued{since: since}
		w.waits[id] = q
	}
	now := time.Now()
	fresh := q.note != note || now.Sub(q.reported) > 30*time.Second
	if fresh {
		q.note, q.reported = note, now
	}
	w.mu.Unlock()
	if fresh {
		w.emit(id, schema.WaitEvent{For: schema.WaitWorker, Note: note, MS: now.Sub(since).Milliseconds()})
	}
}

// taken reports the end of a wait.
func (w *watcher) taken(id schema.ID) {
	w.mu.Lock()
	q := w.waits[id]
	delete(w.waits, id)
	w.mu.Unlock()
	if q != nil {
		w.emit(id, schema.WaitEvent{For: schema.WaitWorker, MS: time.Since(q.since).Milliseconds(), Ended: true})
	}
}

func (w *watcher) emit(id schema.ID, e schema.WaitEvent) {
	w.handle(schema.Event{V: schema.Version, Type: schema.EventWait, Rollout: id, At: time.Now().UnixMilli(), Wait: &e})
}
