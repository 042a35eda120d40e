// Package progress shows the progress of a job. On a terminal it draws a bar and
// the running rollouts; elsewhere it prints lines.
package progress

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// Config describes a board.
type Config struct {
	Out io.Writer
	// Size returns the terminal's columns and rows. Nil: Out is not a terminal.
	Size func() (columns, rows int)
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

const (
	redrawEvery = 200 * time.Millisecond
	// statusEvery is the interval of status lines on output without a bar.
	statusEvery = 30 * time.Second
	// fewRollouts is the largest number of rollouts of a job that prints a line
	// for each phase and call.
	fewRollouts = 8
	// unheardAfter is the time without a running rollout after which a line
	// reports it.
	unheardAfter = 3 * time.Second
	maxRows      = 16
	// maxReason bounds a line about rollouts that wait for a worker, in characters.
	maxReason = 500
)

// Board shows the rollouts of one job. It implements io.Writer for other output,
// such as logs, which appears above the bar. It is safe for concurrent use.
type Board struct {
	cfg Config

	mu      sync.Mutex
	started time.Time
	heard   time.Time // time at which a rollout last ran
	printed time.Time // time of the last status line
	names   map[schema.ID]string
	running map[schema.ID]*row
	queued  map[schema.ID]*schema.WaitEvent // rollouts that no worker has taken
	order   []schema.ID                     // running rollouts, by start
	trials  int
	before  int // trials that ended in an earlier process
	ended   int // trials that ended in this process
	faults  int
	reward  float64
	known   int // number of known rewards
	drawn   int // lines on the terminal

	stop chan struct{}
	done sync.WaitGroup
}

type row struct {
	phase string
	wait  *schema.WaitEvent
	since time.Time // start of the wait
	calls int
	begun time.Time
}

// New makes a board that shows nothing yet.
func New(c Config) *Board {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Board{cfg: c, names: map[schema.ID]string{}, running: map[schema.ID]*row{}, queued: map[schema.ID]*schema.WaitEvent{}}
}

// Begin starts to show the job. names has the name of each rollout that will
// run; results come from an earlier process.
func (b *Board) Begin(trials int, names map[schema.ID]string, results []schema.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trials, b.names = trials, maps.Clone(names)
	b.started = b.cfg.Now()
	b.heard, b.printed = b.started, b.started
	for i := range results {
		b.count(&results[i])
	}
	b.before, b.ended = b.ended, 0
	stop := make(chan struct{})
	b.stop = stop
	b.done.Go(func() {
		t := time.NewTicker(redrawEvery)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				b.tick()
			}
		}
	})
}

// End draws the board a last time and stops.
func (b *Board) End() {
	b.mu.Lock()
	stop := b.stop
	b.stop = nil
	b.mu.Unlock()
	if stop == nil {
		return
	}
	close(stop)
	b.done.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg.Size != nil {
		clear(b.running)
		clear(b.queued)
		b.order = nil
		b.draw()
		b.drawn = 0
	}
}

func (b *Board) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg.Size != nil {
		b.draw()
		return
	}
	now := b.cfg.Now()
	every := statusEvery
	if len(b.running) == 0 && now.Sub(b.heard) >= unheardAfter && !b.printed.After(b.heard) {
		every = 0 // the first line comes at once
	}
	if now.Sub(b.printed) >= every {
		b.printed = now
		fmt.Fprintln(b.cfg.Out, b.status(now))
	}
}

// Write prints p above the bar.
func (b *Board) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
	return b.cfg.Out.Write(p)
}

func (b *Board) row(id schema.ID) *row {
	if b.names[id] == "" { // a rollout of another job
		return nil
	}
	now := b.cfg.Now()
	b.heard = now
	delete(b.queued, id)
	r := b.running[id]
	if r == nil {
		r = &row{begun: now}
		b.running[id] = r
		b.order = append(b.order, id)
	}
	return r
}

// Event updates the phase of a rollout, or the reason for which it waits.
func (b *Board) Event(e schema.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Phase == nil && e.Wait == nil {
		return
	}
	if e.Wait != nil && e.Wait.For == schema.WaitWorker {
		b.queue(e.Rollout, e.Wait)
		return
	}
	r := b.row(e.Rollout)
	if r == nil {
		return
	}
	switch {
	case e.Phase != nil && !e.Phase.Ended:
		if r.phase == "" {
			r.begun = b.heard
		}
		r.phase, r.wait = e.Phase.Name, nil
		b.line(e.Rollout, "phase "+r.phase)
	case e.Wait != nil && e.Wait.Ended:
		if r.wait != nil {
			b.line(e.Rollout, "goes on")
		}
		r.wait = nil
	case e.Wait != nil:
		if r.wait == nil {
			r.since = b.cfg.Now().Add(-time.Duration(e.Wait.MS) * time.Millisecond)
		}
		r.wait = e.Wait
		b.line(e.Rollout, e.Wait.String())
	}
}

// queue records that a rollout waits for a worker, or no longer does.
func (b *Board) queue(id schema.ID, w *schema.WaitEvent) {
	if b.names[id] == "" || b.running[id] != nil { // the event came late
		return
	}
	had := b.queued[id]
	if w.Ended {
		delete(b.queued, id)
		return
	}
	b.queued[id] = w
	if had == nil || had.Note != w.Note {
		for l := range strings.Lines(w.String()) {
			b.line(id, l)
		}
	}
}

// Call records that a model call of a rollout was answered.
func (b *Board) Call(id schema.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.row(id); r != nil {
		r.calls++
		if r.wait != nil && r.wait.Call > 0 {
			r.wait = nil
		}
		b.line(id, fmt.Sprintf("call %d", r.calls))
	}
}

// Result records that a rollout has ended.
func (b *Board) Result(r *schema.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard = b.cfg.Now()
	b.count(r)
	b.forget(r.ID)
	if b.cfg.Size == nil {
		fmt.Fprintf(b.cfg.Out, "[%d/%d] %s %s: %s\n", b.before+b.ended, b.trials, r.ID, plain.Line(b.names[r.ID], 60), plain.Line(Outcome(r), 300))
	}
}

// Again records that a rollout has ended and that its trial runs again as next.
func (b *Board) Again(r *schema.Result, next schema.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard = b.cfg.Now()
	b.names[next] = b.names[r.ID]
	b.forget(r.ID)
	if b.cfg.Size == nil {
		fmt.Fprintf(b.cfg.Out, "%s %s: %s; the trial runs again as %s\n", r.ID, plain.Line(b.names[r.ID], 60), plain.Line(Outcome(r), 300), next)
	}
}

// Moved records that the trial of a rollout, which has not begun, runs as another one.
func (b *Board) Moved(from, to schema.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names[to] = b.names[from]
	b.forget(from)
}

// Paused records that a pause of the job begins or ends.
func (b *Board) Paused(on bool) {
	text := "the job goes on\n"
	if on {
		text = "the job is paused: running trials end, and no trial begins; `turngate job resume` ends the pause\n"
	}
	_, _ = b.Write([]byte(text)) // as for all lines of the board
}

// forget removes a rollout from the ones that wait or run.
func (b *Board) forget(id schema.ID) {
	delete(b.queued, id)
	delete(b.running, id)
	if i := slices.Index(b.order, id); i >= 0 {
		b.order = slices.Delete(b.order, i, i+1)
	}
}

func (b *Board) count(r *schema.Result) {
	b.ended++
	if r.Fault != nil {
		b.faults++
	}
	if r.Reward != nil {
		b.reward += *r.Reward
		b.known++
	}
}

// line prints a line about a rollout, if the job has at most fewRollouts and Out
// is not a terminal.
func (b *Board) line(id schema.ID, text string) {
	if b.cfg.Size == nil && b.trials <= fewRollouts {
		fmt.Fprintf(b.cfg.Out, "%s %s: %s\n", id, plain.Line(b.names[id], 60), plain.Line(text, maxReason))
	}
}

// Outcome returns a short text about the end of a rollout.
func Outcome(r *schema.Result) string {
	s := string(r.Status)
	if r.Reward != nil {
		s += ", reward " + Reward(r.Reward)
	}
	if r.Fault != nil {
		s += ", " + r.Fault.Error()
	}
	return s
}

// errorCount formats a number of rollouts with a fault.
func errorCount(n int) string {
	if n == 1 {
		return "1 error"
	}
	return fmt.Sprintf("%d errors", n)
}

// Reward formats a reward; "-" for one that is not known.
func Reward(v *float64) string {
	if v == nil {
		return "-"
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", *v), "0"), ".")
}

// Dollars formats a cost; "-" for one that is not known. Small costs have two digits, so that
// none but 0 reads as 0.
func Dollars(usd *float64) string {
	switch {
	case usd == nil:
		return "-"
	case *usd >= 1:
		return fmt.Sprintf("$%.2f", *usd)
	case *usd >= 0.001 || *usd == 0:
		return fmt.Sprintf("$%.4f", *usd)
	default:
		digits := 1 - int(math.Floor(math.Log10(math.Abs(*usd))))
		return fmt.Sprintf("$%.*f", min(digits, maxDigits), *usd)
	}
}

// maxDigits is the largest number of digits of a cost after the point.
const maxDigits = 12
