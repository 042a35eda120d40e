package jobs

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Watcher shows the progress of a job that another process runs.
type Watcher interface {
	Progress
	// Time gives the time of the calls that follow, which are in the past; the zero time:
	// they happen now.
	Time(at time.Time)
	// Begin is the first call. names has the trials by their rollouts, and results those
	// of earlier processes: their ids, statuses, rewards and faults.
	Begin(trials int, names map[schema.ID]string, results []schema.Result)
}

// feedBuffer is the number of notes that a follower may lag behind. One that lags more
// is cut off.
const feedBuffer = 4096

// note is one call of a Watcher.
type note struct {
	At     time.Time      `json:"at"`
	Begin  *beginning     `json:"begin,omitempty"`
	Event  *schema.Event  `json:"event,omitempty"`
	Calls  int            `json:"calls,omitempty"` // that the rollout ID made
	Result *schema.Result `json:"result,omitempty"`
	ID     schema.ID      `json:"id,omitempty"`
	To     schema.ID      `json:"to,omitempty"` // the next rollout of the trial of Result or ID
	Paused *bool          `json:"paused,omitempty"`
	Live   bool           `json:"live,omitempty"` // the notes that follow happen now
}

// beginning has the arguments of Watcher.Begin.
type beginning struct {
	Trials  int                  `json:"trials"`
	Names   map[schema.ID]string `json:"names"`
	Results []schema.Result      `json:"results"`
}

// feed passes the progress of a run on, and gives it to the processes that follow it.
type feed struct {
	next Progress
	born time.Time

	mu        sync.Mutex
	first     beginning                  // of this process
	past      []note                     // results, and rollouts that were replaced
	open      map[schema.ID]*openRollout // without a result
	paused    *note
	followers map[chan note]bool
	ended     bool
}

// openRollout is the state of a rollout without a result.
type openRollout struct {
	begun  time.Time
	phase  *schema.Event
	calls  int
	wait   *schema.Event
	waited time.Time
}

func newFeed(w *Work, next Progress) *feed {
	f := &feed{
		next: next, born: time.Now(), open: map[schema.ID]*openRollout{}, followers: map[chan note]bool{},
		first: beginning{Trials: len(w.Job.Plan.Trials), Names: maps.Clone(w.names)},
	}
	for id := range w.names {
		f.open[id] = &openRollout{}
	}
	for _, r := range w.Job.Results() {
		f.first.Results = append(f.first.Results, short(&r))
	}
	return f
}

// short returns the parts of a result that its progress shows.
func short(r *schema.Result) schema.Result {
	return schema.Result{ID: r.ID, Status: r.Status, Reward: r.Reward, Fault: r.Fault}
}

// tell sends a note to the followers. The caller holds f.mu.
func (f *feed) tell(n note) {
	for to := range f.followers {
		select {
		case to <- n:
		default:
			f.cut(to)
		}
	}
}

func (f *feed) cut(to chan note) {
	if f.followers[to] {
		delete(f.followers, to)
		close(to)
	}
}

func (f *feed) Event(e schema.Event) {
	f.next.Event(e)
	if e.Phase == nil && e.Wait == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now, o := time.Now(), f.open[e.Rollout]
	switch {
	case o == nil: // it came late, or is of another job
		return
	case e.Phase != nil && !e.Phase.Ended:
		if o.phase == nil {
			o.begun = now
		}
		o.phase, o.wait = &e, nil
	case e.Wait != nil && e.Wait.Ended:
		o.wait = nil
	case e.Wait != nil:
		o.wait, o.waited = &e, now
	}
	f.tell(note{At: now, Event: &e})
}

func (f *feed) Call(id schema.ID) {
	f.next.Call(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	now, o := time.Now(), f.open[id]
	if o == nil {
		return
	}
	if o.begun.IsZero() {
		o.begun = now
	}
	if o.calls++; o.wait != nil && o.wait.Wait.Call > 0 {
		o.wait = nil
	}
	f.tell(note{At: now, ID: id, Calls: 1})
}

func (f *feed) Result(r *schema.Result) {
	f.next.Result(r)
	s := short(r)
	f.replace(r.ID, note{Result: &s})
}

func (f *feed) Again(r *schema.Result, next schema.ID) {
	f.next.Again(r, next)
	s := short(r)
	f.replace(r.ID, note{Result: &s, To: next})
}

func (f *feed) Moved(from, to schema.ID) {
	f.next.Moved(from, to)
	f.replace(from, note{ID: from, To: to})
}

// replace removes a rollout from the open ones, with the note that tells of it, and adds
// the next one of its trial.
func (f *feed) replace(id schema.ID, n note) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.At = time.Now()
	delete(f.open, id)
	if n.To != "" {
		f.open[n.To] = &openRollout{}
	}
	f.past = append(f.past, n)
	f.tell(n)
}

func (f *feed) Paused(on bool) {
	f.next.Paused(on)
	f.mu.Lock()
	defer f.mu.Unlock()
	n := note{At: time.Now(), Paused: &on}
	f.paused = &n
	f.tell(n)
}

// end ends the streams of all followers.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for to := range f.followers {
		f.cut(to)
	}
}

// follow returns the notes so far and a channel with those to come, which ends with the
// run, and for a follower that lags.
func (f *feed) follow() (past []note, to chan note) {
	f.mu.Lock()
	defer f.mu.Unlock()
	past = append([]note{{At: f.born, Begin: &f.first}}, f.past...)
	for id, o := range f.open {
		if o.phase != nil {
			past = append(past, note{At: o.begun, Event: o.phase})
		}
		if o.calls > 0 {
			past = append(past, note{At: o.begun, ID: id, Calls: o.calls})
		}
		if o.wait != nil {
			past = append(past, note{At: o.waited, Event: o.wait})
		}
	}
	if f.paused != nil && *f.paused.Paused {
		past = append(past, *f.paused)
	}
	slices.SortStableFunc(past[1:], func(a, b note) int { return a.At.Compare(b.At) })
	past = append(past, note{Live: true})
	to = make(chan note, feedBuffer)
	if f.ended {
		close(to)
	} else {
		f.followers[to] = true
	}
	return past, to
}

// serve streams the notes to another process, one JSON value a line.
func (f *feed) serve(w http.ResponseWriter, q *http.Request) {
	past, to := f.follow()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.cut(to)
	}()
	e, flush := json.NewEncoder(w), http.NewResponseController(w)
	for _, n := range past {
		if e.Encode(n) != nil {
			return
		}
	}
	for flush.Flush() == nil {
		select {
		case <-q.Context().Done():
			return
		case n, ok := <-to:
			if !ok || e.Encode(n) != nil {
				return
			}
		}
	}
}

// Follow shows the progress of the running job in a folder, from its beginning on, until
// its process stops to tell it, mostly because the run ends; StateOf has the reason. The
// error is a *NotRunningError if no process runs the job.
func Follow(ctx context.Context, dir string, w Watcher) error {
	if err := IsOwn(dir); err != nil {
		return err
	}
	res, err := request(ctx, dir, http.MethodGet, "progress")
	if err != nil {
		return err
	}
	if res == nil {
		state, err := restingState(dir)
		if err != nil {
			return err
		}
		return &NotRunningError{dir, state}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("follow the job %s: its process answers %s: it is of another version of turngate", dir, res.Status)
	}
	notes := bufio.NewScanner(res.Body)
	notes.Buffer(nil, maxPlan)
	for first, live := true, false; ; first = false {
		var n note
		err := io.EOF
		if notes.Scan() {
			err = json.Unmarshal(notes.Bytes(), &n)
		} else if notes.Err() != nil {
			err = notes.Err()
		}
		if err == nil {
			err = n.check()
		}
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if left(err) {
				return nil
			}
			return fmt.Errorf("follow the job %s: %w", dir, rawjson.Plain(err))
		}
		if first != (n.Begin != nil) {
			return fmt.Errorf("follow the job %s: its progress does not begin at the beginning", dir)
		}
		if live = live || n.Live; live {
			n.At = time.Time{}
		}
		w.Time(n.At)
		n.show(w)
	}
}

// maxCalls is the largest number of calls of one note.
const maxCalls = 1 << 20

// check checks a note of another process.
func (n *note) check() error {
	if n.Calls < 0 || n.Calls > maxCalls {
		return fmt.Errorf("calls: %d is not valid: want 0 to %d", n.Calls, maxCalls)
	}
	for _, id := range []schema.ID{n.ID, n.To} {
		if id == "" {
			continue
		}
		if _, err := schema.ParseID(string(id)); err != nil {
			return err
		}
	}
	if n.Result != nil {
		if _, err := schema.ParseID(string(n.Result.ID)); err != nil {
			return err
		}
	}
	if n.Event != nil {
		return schema.Validate(n.Event)
	}
	return nil
}

// show makes the call of a note.
func (n *note) show(w Watcher) {
	switch {
	case n.Begin != nil:
		w.Begin(n.Begin.Trials, n.Begin.Names, n.Begin.Results)
	case n.Event != nil:
		w.Event(*n.Event)
	case n.Calls > 0:
		for range n.Calls {
			w.Call(n.ID)
		}
	case n.Result != nil && n.To != "":
		w.Again(n.Result, n.To)
	case n.Result != nil:
		w.Result(n.Result)
	case n.Paused != nil:
		w.Paused(*n.Paused)
	case n.To != "":
		w.Moved(n.ID, n.To)
	}
}
