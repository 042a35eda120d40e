package front

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// watch writes the events of a rollout as server-sent events, from the first one on or
// behind Last-Event-ID, until its result. The id of an event is its place in the store, the
// same in each front.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t *tenant) error {
	one, err := s.eventsOf(r.Context(), t, r.PathValue("id"))
	if err != nil {
		return err
	}
	origin, after, err := eventAfter("Last-Event-ID", cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(r.Context())
	defer stop()
	to := &eventWriter{feed: newFeed(w), stop: stop}
	var beats sync.WaitGroup
	defer beats.Wait()
	beats.Go(func() { to.beats(ctx) })
	defer stop() // before the wait for beats
	return s.events.Watch(ctx, one.ID, recorded.Listener{
		Origin: origin, After: after,
		Begin: func(origin string, _ uint64) { to.begin(origin) },
		Event: to.event,
	})
}

// eventWriter writes the events of a rollout. Beats come from another goroutine.
type eventWriter struct {
	stop context.CancelFunc // ends the stream

	mu     sync.Mutex
	feed   *feed
	origin string
}

// begin notes the origin of the next events.
func (e *eventWriter) begin(origin string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.origin = origin
}

func (e *eventWriter) event(n uint64, event *schema.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := ""
	if n > 0 {
		id = e.origin + "." + strconv.FormatUint(n, 10)
	}
	if e.feed.send(string(event.Type), id, event) != nil {
		e.stop()
	}
}

func (e *eventWriter) beats(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.mu.Lock()
		err := e.feed.beat()
		e.mu.Unlock()
		if err != nil {
			e.stop()
		}
	}
}
