package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Settings of a feed.
const (
	feedEvery = 200 * time.Millisecond // the shortest time between two writes of changes
	feedBeat  = 5 * time.Second        // after which a silent feed has an event, so that a lost browser, or console, is noticed
	feedWrite = 30 * time.Second       // after which a browser that reads nothing is dropped
	feedRows  = 500                    // in one event
	feedAgain = 5 * time.Second        // after which a browser that was refused tries again
	maxFeeds  = 256                    // open ones of all browsers
)

// begin is the first event of a feed.
type begin struct {
	Source  string `json:"source"`
	Version string `json:"version"`
	Jobs    bool   `json:"jobs"`  // there are pages of jobs
	Plays   bool   `json:"plays"` // rollouts can be run from a page
}

// feed writes server-sent events.
type feed struct {
	w    http.ResponseWriter
	c    *http.ResponseController
	last error
}

func newFeed(w http.ResponseWriter) *feed {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	return &feed{w: w, c: http.NewResponseController(w)}
}

// refuse tells a browser why it gets no feed for now. It tries again by itself.
func (f *feed) refuse(why string) {
	f.write(fmt.Sprintf("retry: %d\n", feedAgain.Milliseconds()))
	f.note("trouble", why)
}

// open returns a feed; nil: there are too many, which the browser is told. The caller calls
// done at the feed's end.
func (s *Server) open(w http.ResponseWriter, r *http.Request) (f *feed, done func()) {
	f = newFeed(w)
	select {
	case s.feeds <- struct{}{}:
		ended := s.config.HTTP.StreamBegan(r)
		return f, func() { ended(); <-s.feeds }
	default:
		f.refuse(fmt.Sprintf("The console has %d open feeds, its bound: close some of its pages. This page tries again.", maxFeeds))
		return nil, nil
	}
}

// send writes an event. id is the one from which the browser goes on.
func (f *feed) send(event, id string, v any) { f.event("id: "+id+"\n", event, v) }

// note writes an event without an id: the browser goes on from an earlier one.
func (f *feed) note(event string, v any) { f.event("", event, v) }

func (f *feed) event(id, event string, v any) {
	data, err := json.Marshal(v) // has no line breaks
	if err != nil {
		f.last = err
		return
	}
	f.write("event: " + event + "\n" + id + "data: " + string(data) + "\n\n")
}

func (f *feed) write(text string) {
	if f.last != nil {
		return
	}
	if f.last = f.c.SetWriteDeadline(time.Now().Add(feedWrite)); f.last == nil {
		_, f.last = fmt.Fprint(f.w, text)
	}
	if f.last == nil {
		f.last = f.c.Flush()
	}
}

// rollouts writes all rows, and then each change. The id of an event is the number of a
// change in this process; a browser that comes back with it gets the later changes, and
// one with the id of another process gets all rows anew. After a lost connection the
// browser sends the id in a header; a page that closed its feed sends it in the URL.
func (s *Server) rollouts(w http.ResponseWriter, r *http.Request) {
	s.watched()
	f, done := s.open(w, r)
	if f == nil {
		return
	}
	defer done()
	process, number, _ := strings.Cut(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")), ".")
	last, err := strconv.ParseUint(number, 10, 64)
	id := func() string { return s.process + "." + strconv.FormatUint(last, 10) }
	if err != nil || process != s.process {
		last = 0
		f.send("begin", id(), begin{s.name, s.config.Version, s.config.Source.Runs() != nil, s.player != nil})
	}
	trouble, sent := "", false // a browser that comes back may have an old one
	for f.last == nil {
		v := s.table.after(last)
		for len(v.changes) > 0 {
			n := min(len(v.changes), feedRows)
			rows := make([]Row, n)
			for i := range rows {
				rows[i] = v.changes[i].row
			}
			last = v.changes[n-1].n
			f.send("rows", id(), rows)
			v.changes = v.changes[n:]
		}
		if !sent || v.trouble != trouble {
			trouble, sent = v.trouble, true
			f.send("trouble", id(), trouble)
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(feedBeat):
			f.note("beat", nil)
		case <-v.changed:
			select {
			case <-r.Context().Done():
				return
			case <-time.After(feedEvery):
			}
		}
	}
}
