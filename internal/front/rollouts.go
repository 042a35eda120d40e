package front

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Bounds of a list.
const (
	listLimit  = 50
	maxList    = 200
	maxScanned = 1000 // rollouts that are read for one list
)

// entry is a rollout in a list.
type entry struct {
	ID      schema.ID         `json:"id"`
	Status  schema.Status     `json:"status"`
	Attempt int               `json:"attempt"`
	Group   string            `json:"group,omitempty"`
	Index   int               `json:"index"`
	Task    string            `json:"task,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Worker  string            `json:"worker,omitempty"`
	Since   int64             `json:"since,omitempty"` // of the status, in Unix ms
	Reward  *float64          `json:"reward"`          // null: not known, which is not 0
	Fault   *schema.Fault     `json:"fault,omitempty"`
}

// detail is one rollout.
type detail struct {
	entry
	Request *schema.Request `json:"request,omitempty"` // until it has ended
	Result  *schema.Result  `json:"result,omitempty"`  // when it has ended
	// Waits is the reason for which a queued rollout waits.
	Waits string `json:"waits,omitempty"`
}

// page is the answer to a list.
type page struct {
	Rollouts []entry `json:"rollouts"`
	// Next is the cursor of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
}

func entryOf(r *recorded.Rollout) entry {
	e := entry{ID: r.ID}
	if s := r.State; s != nil {
		e.Status, e.Attempt, e.Worker, e.Since, e.Fault = s.Status, s.Attempt, s.Worker, s.Since, s.Fault
	}
	if q := r.Asked; q != nil {
		e.Group, e.Index, e.Task, e.Labels = q.Group, q.Index, q.Task.Name, q.Labels
	}
	if a := r.Result; a != nil {
		e.Status, e.Attempt, e.Worker, e.Fault, e.Reward = a.Status, a.Attempt, a.Worker, a.Fault, a.Reward
		e.Group, e.Index, e.Task, e.Labels = a.Group, a.Index, a.Task, a.Labels
	}
	return e
}

// filter selects rollouts of a list.
type filter struct {
	statuses    []string
	group, task string
	labels      map[string]string
	limit       int
	at          place
}

// place is a place in a list: the sequence in the queue behind which it goes on, or with
// states that of the state before which it goes on; there 0 is the newest one.
type place struct {
	states bool
	seq    uint64
}

// cursor writes a place, and readPlace reads it.
func (p place) cursor() string {
	if p.states {
		return "s" + strconv.FormatUint(p.seq, 36)
	}
	return "q" + strconv.FormatUint(p.seq, 36)
}

func readPlace(text string) (place, error) {
	seq, isState := strings.CutPrefix(text, "s")
	if !isState {
		var ok bool
		if seq, ok = strings.CutPrefix(text, "q"); !ok {
			return place{}, invalidField("cursor", text, "want next of an earlier page")
		}
	}
	n, err := strconv.ParseUint(seq, 36, 64)
	if err != nil {
		return place{}, invalidField("cursor", text, "want next of an earlier page")
	}
	return place{isState, n}, nil
}

// filterOf reads the query of a list.
func filterOf(q url.Values) (f filter, err error) {
	f = filter{limit: listLimit, group: q.Get("group"), task: q.Get("task"), labels: map[string]string{}}
	for name := range q {
		if !slices.Contains([]string{"status", "group", "task", "label", "limit", "cursor"}, name) {
			return f, invalidField(name, q.Get(name), "there is no such parameter: want status, group, task, label, limit or cursor")
		}
	}
	if text := q.Get("status"); text != "" {
		f.statuses = strings.Split(text, ",")
		for _, s := range f.statuses {
			known := []schema.Status{schema.StatusQueued, schema.StatusRunning, schema.StatusCancelling, schema.StatusDone, schema.StatusFailed, schema.StatusCancelled, schema.StatusDead}
			if !slices.Contains(known, schema.Status(s)) {
				return f, invalidField("status", s, "want queued, running, cancelling, done, failed, cancelled or dead")
			}
		}
	}
	for _, label := range q["label"] {
		name, value, ok := strings.Cut(label, "=")
		if !ok {
			return f, invalidField("label", label, "want NAME=VALUE")
		}
		f.labels[name] = value
	}
	if f.limit, err = numberOf(q, "limit", f.limit, 1, maxList); err != nil {
		return f, err
	}
	if text := q.Get("cursor"); text != "" {
		f.at, err = readPlace(text)
		return f, err
	}
	f.at.states = len(f.statuses) > 0 && !slices.Contains(f.statuses, string(schema.StatusQueued)) // queued rollouts are not wanted
	return f, nil
}

// numberOf reads a number of a query.
func numberOf(q url.Values, name string, value, least, most int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return value, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, invalidField(name, text, "want a number from "+strconv.Itoa(least)+" to "+strconv.Itoa(most))
	}
	return n, nil
}

func (f *filter) has(e *entry) bool {
	if len(f.statuses) > 0 && !slices.Contains(f.statuses, string(e.Status)) || f.group != "" && e.Group != f.group || f.task != "" && e.Task != f.task {
		return false
	}
	for name, value := range f.labels {
		if has, ok := e.Labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}

// list lists rollouts: the queued ones, the oldest first, and then the others, the newest
// first.
func (s *Server) list(w http.ResponseWriter, r *http.Request, t *tenant) error {
	f, err := filterOf(r.URL.Query())
	if err != nil {
		return err
	}
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	out := page{Rollouts: []entry{}}
	at := f.at
	for scanned, more := 0, true; ; {
		var list []*recorded.Rollout
		var next uint64
		most := min(f.limit-len(out.Rollouts), maxScanned-scanned)
		if at.states {
			list, next, err = l.read.Rollouts(r.Context(), t.name, at.seq, most, false)
			more = next > 0
		} else {
			list, next, err = l.read.Unclaimed(r.Context(), t.name, at.seq, most)
			at.states = next == 0 // the queue has ended
		}
		if err != nil {
			return err
		}
		at.seq = next
		for _, one := range list {
			if e := entryOf(one); f.has(&e) {
				out.Rollouts = append(out.Rollouts, e)
			}
		}
		scanned += most
		if out.Next = ""; more {
			out.Next = at.cursor()
		}
		if !more || len(out.Rollouts) >= f.limit || scanned >= maxScanned {
			return reply(w, http.StatusOK, out)
		}
	}
}

// find returns a rollout of the trainer by its id.
func (l *line) find(ctx context.Context, t *tenant, text string, queue bool) (*recorded.Rollout, error) {
	id, err := schema.ParseID(text)
	if err != nil || id.Trainer() != t.name { // another trainer's is as one that does not exist
		return nil, notFound(text)
	}
	one, err := l.read.Rollout(ctx, id, queue)
	if errors.Is(err, broker.ErrNotFound) {
		return nil, notFound(text)
	}
	return one, err
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, t *tenant) error {
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	one, err := l.find(r.Context(), t, r.PathValue("id"), true)
	if err != nil {
		return err
	}
	out := detail{entry: entryOf(one), Request: one.Asked, Result: one.Result}
	if out.Status == schema.StatusQueued && one.Asked != nil {
		if fleet, err := l.queue.Fleet(r.Context()); err == nil { // without an answer the reason is not known
			out.Waits = fleet.Queued(one.Asked)
		}
	}
	return reply(w, http.StatusOK, &out)
}

// workers lists the workers for this trainer, without their names.
func (s *Server) workers(w http.ResponseWriter, r *http.Request, t *tenant) error {
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	fleet, err := l.queue.Fleet(r.Context())
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, &fleet)
}
