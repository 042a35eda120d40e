package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Live is a Source of rollouts that may run.
type Live interface {
	// Listen tells of the events of a rollout until the context ends.
	Listen(ctx context.Context, id schema.ID, to recorded.Listener) error
	// Unheard says which events Listen does not tell of; empty: all are told.
	Unheard() string
}

// Settings of the rollouts that browsers watch.
const (
	maxWatched = 64               // rollouts at once
	watchKept  = 30 * time.Second // after the last browser has left, so that a reload finds the streamed text
	watchAgain = time.Second      // after an error
)

// watches are the rollouts that browsers watch. All browsers of a rollout share its messages.
type watches struct {
	mu      sync.Mutex
	open    map[schema.ID]*watch
	closed  bool
	running sync.WaitGroup
}

type watch struct {
	story    *story
	stop     context.CancelFunc
	browsers int
	joined   int // number of browsers so far
}

// join returns the watch of a rollout, and begins it for the first browser; nil: too many are
// watched. The caller leaves it.
func (ws *watches) join(ctx context.Context, live Live, id schema.ID) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.open[id]
	if w == nil {
		if ws.closed || len(ws.open) == maxWatched {
			return nil
		}
		ctx, stop := context.WithCancel(ctx)
		w = &watch{stop: stop, story: newStory()}
		ws.open[id] = w
		ws.running.Go(func() { w.listen(ctx, live, id) })
	}
	w.browsers++
	w.joined++
	return w
}

func (w *watch) listen(ctx context.Context, live Live, id schema.ID) {
	for ctx.Err() == nil {
		if err := live.Listen(ctx, id, w.story.listener()); ctx.Err() == nil {
			w.story.setTrouble(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// leave ends the watch of a rollout a while after its last browser has left.
func (ws *watches) leave(ctx context.Context, id schema.ID, w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.browsers--; w.browsers > 0 || ws.closed {
		return
	}
	joined := w.joined
	ws.running.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(watchKept):
		}
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if w.joined == joined {
			w.stop()
			delete(ws.open, id)
		}
	})
}

// close waits for the end of the watches, after the end of their context.
func (ws *watches) close() {
	ws.mu.Lock()
	ws.closed = true
	ws.mu.Unlock()
	ws.running.Wait()
}

// live writes the events of a rollout from the first one on, and then each new one. The
// id of an event is its number in the source's series of events, so a browser that comes
// back with it, also to another process, gets the later ones. ctx is that of the server. Streamed text has no id:
// a browser that comes back gets the text of the open calls from its beginning.
func (s *Server) live(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	live, ok := s.config.Source.(Live)
	if !ok {
		http.Error(w, "a folder has no live events", http.StatusNotFound)
		return
	}
	found, status, err := s.look(r)
	if err != nil && status != http.StatusBadGateway {
		http.Error(w, plain.Line(err.Error(), maxFault), status)
		return
	}
	f, done := s.open(w, r)
	if f == nil {
		return
	}
	defer done()
	if err != nil { // an error of HTTP would end the browser's tries
		f.refuse(plain.Line(err.Error(), maxFault))
		return
	}
	watched := s.watches.join(ctx, live, found.ID)
	if watched == nil {
		f.refuse(fmt.Sprintf("%d rollouts are watched at once, the bound of a console: close some of their pages. This page tries again.", maxWatched))
		return
	}
	defer s.watches.leave(ctx, found.ID, watched)
	asked := s.questioner(ctx, found)
	origin, number, _ := strings.Cut(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")), ".")
	last, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		origin = ""
	}
	sent := map[callKey]progress{}
	trouble, told := "", false // a browser that comes back may have an old one
	for f.last == nil {
		p := watched.story.after(origin, last, sent)
		if p.begin {
			origin, last = p.origin, 0
			f.send("begin", origin+".0", map[string]any{"unheard": plain.Line(live.Unheard(), maxFault), "lost": p.lost})
		}
		if len(p.entries) > 0 {
			last = p.entries[len(p.entries)-1].n
			list := make([]*Entry, len(p.entries))
			for i := range p.entries {
				list[i] = p.entries[i].shown
			}
			f.send("events", origin+"."+strconv.FormatUint(last, 10), list)
		}
		if len(p.texts) > 0 {
			f.note("texts", p.texts)
		}
		if !told || p.trouble != trouble {
			trouble, told = p.trouble, true
			f.note("trouble", trouble)
		}
		if p.more {
			continue
		}
		news := asked(f)
		select {
		case <-r.Context().Done():
			return
		case <-time.After(feedBeat):
			f.note("beat", nil)
		case <-news:
		case <-p.changed:
			select {
			case <-r.Context().Done():
				return
			case <-time.After(liveEvery):
			}
		}
	}
}

// liveEvery is the shortest time between two writes of events.
const liveEvery = 100 * time.Millisecond
