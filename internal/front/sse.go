package front

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// Times of a stream of server-sent events.
const (
	beatEvery   = 15 * time.Second // a comment, so that both sides notice a lost connection
	writeWithin = 30 * time.Second // of one write
)

// feed writes server-sent events.
type feed struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// wantsFeed reports whether a client asked for server-sent events.
func wantsFeed(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// newFeed begins a stream. The client has its header at once.
func newFeed(w http.ResponseWriter) *feed {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx passes each event on
	w.WriteHeader(http.StatusOK)
	f := &feed{w, http.NewResponseController(w)}
	_ = f.beat() // the next write fails, too
	return f
}

// send writes an event. Without an id it does not move the place at which a client goes on.
func (f *feed) send(name, id string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	text := "event: " + name + "\n"
	if id != "" {
		text += "id: " + id + "\n"
	}
	return f.write(text + "data: " + string(data) + "\n\n") // json.Marshal writes one line
}

// beat writes a comment.
func (f *feed) beat() error { return f.write(":\n\n") }

func (f *feed) write(text string) error {
	if err := f.control.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return err
	}
	if _, err := f.w.Write([]byte(text)); err != nil {
		return err
	}
	return f.control.Flush()
}
