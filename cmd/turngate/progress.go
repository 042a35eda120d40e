package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/turngate/turngate/schema"
)

// progress shows what rollouts do: a line each that is redrawn on a terminal,
// plain lines elsewhere.
type progress struct {
	w    io.Writer
	live bool

	mu    sync.Mutex
	order []schema.ID
	rows  map[schema.ID]*row
	drawn int
	stop  chan struct{}
	done  sync.WaitGroup
}

type row struct {
	task   string
	phase  string
	calls  int
	tokens int64
	start  time.Time
	took   time.Duration // once it has ended
	result string
}

func newProgress(w io.Writer, terminal *os.File) *progress {
	return &progress{w: w, live: isTerminal(terminal), rows: map[schema.ID]*row{}, stop: make(chan struct{})}
}

func (p *progress) begin(requests []schema.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range requests {
		p.row(r.ID).task = oneLine(r.Task.Name, 30)
	}
	if !p.live {
		return
	}
	p.done.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-t.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			}
		}
	})
}

func (p *progress) row(id schema.ID) *row {
	r := p.rows[id]
	if r == nil {
		r = &row{phase: "queued"}
		p.rows[id] = r
		p.order = append(p.order, id)
	}
	return r
}

// event hears of a rollout that runs in this process.
func (p *progress) event(e schema.Event) {
	if e.Phase == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.row(e.Rollout)
	if r.start.IsZero() {
		r.start = time.Now()
	}
	if !e.Phase.Ended {
		r.phase = e.Phase.Name
		p.line(e.Rollout, r, "phase "+r.phase)
	}
}

func (p *progress) call(id schema.ID, reply *schema.Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.row(id)
	if r.start.IsZero() {
		r.start = time.Now()
	}
	r.calls++
	if reply != nil {
		r.tokens += reply.Usage.PromptTokens + reply.Usage.CompletionTokens
	}
	p.line(id, r, fmt.Sprintf("call %d", r.calls))
}

func (p *progress) result(res *schema.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.row(res.ID)
	r.result = resultLine(res)
	if !r.start.IsZero() {
		r.took = time.Since(r.start)
	}
	p.line(res.ID, r, oneLine(r.result, 300))
}

// line is one plain line.
func (p *progress) line(id schema.ID, r *row, text string) {
	if !p.live {
		fmt.Fprintf(p.w, "%s %s: %s\n", id, r.task, text)
	}
}

// draw writes every row over the last drawing.
func (p *progress) draw() {
	if p.drawn > 0 {
		fmt.Fprintf(p.w, "\x1b[%dA", p.drawn)
	}
	width, _, err := term.GetSize(int(os.Stderr.Fd()))
	if err != nil || width < 20 {
		width = 80
	}
	for _, id := range p.order {
		r := p.rows[id]
		took := r.took
		if took == 0 && !r.start.IsZero() {
			took = time.Since(r.start)
		}
		state := r.phase
		if r.result != "" {
			state = r.result
		}
		line := fmt.Sprintf("%-20s %s  %s  %d calls, %d tokens, %.1fs", r.task, id, state, r.calls, r.tokens, took.Seconds())
		fmt.Fprintf(p.w, "\x1b[2K%s\n", oneLine(line, width-1)) // a line that wraps would break the drawing
	}
	p.drawn = len(p.order)
}

func (p *progress) end() {
	close(p.stop)
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live {
		p.draw()
	}
}
