package progress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// draw replaces the last drawing of the board with a new one.
func (b *Board) draw() {
	columns, rows := b.cfg.Size()
	if columns < 20 {
		columns = 80
	}
	lines := b.render(b.cfg.Now(), columns-1, rows) // a full line would wrap
	var out strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", b.drawn)
	}
	out.WriteString("\r\x1b[J")
	for _, l := range lines {
		out.WriteString(l + "\n")
	}
	_, _ = fmt.Fprint(b.cfg.Out, out.String())
	b.drawn = len(lines)
}

// erase removes the last drawing.
func (b *Board) erase() {
	if b.drawn > 0 {
		_, _ = fmt.Fprintf(b.cfg.Out, "\x1b[%dA\r\x1b[J", b.drawn)
		b.drawn = 0
	}
}

// render returns the lines of the board: the bar, and as many running rollouts
// as fit.
func (b *Board) render(now time.Time, columns, rows int) []string {
	ended := b.before + b.ended
	head := fmt.Sprintf("%d/%d ", ended, b.trials)
	tail := " " + b.figures(now)
	width := min(columns-len([]rune(head))-len([]rune(tail)), 24)
	bar := ""
	if width >= 6 && b.trials > 0 {
		full := width * ended / b.trials
		bar = strings.Repeat("█", full) + strings.Repeat("░", width-full)
	}
	lines := []string{plain.Line(head+bar+tail, columns)}
	if len(b.running) == 0 {
		if len(b.queued) > 0 {
			return append(lines, b.queueDrawn(columns, max(rows-4, 3))...)
		}
		if quiet := now.Sub(b.heard); ended < b.trials && quiet >= unheardAfter {
			lines = append(lines, plain.Line("  none runs: they wait for a worker, "+short(quiet), columns))
		}
		return lines
	}
	room := min(maxRows, max(rows-4, 3))
	shown := b.order
	if len(shown) > room {
		shown = shown[:room-1]
	}
	for _, id := range shown {
		lines = append(lines, b.runningLine(b.names[id], b.running[id], now, columns))
	}
	if more := len(b.order) - len(shown); more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more that run", more))
	}
	if len(b.queued) > 0 {
		lines = append(lines, b.queueDrawn(columns, max(rows-1-len(lines), 3))...)
	}
	return lines
}

// queueLines returns the number of rollouts that wait for a worker, and the reasons. The
// first line has the first reason; a reason may have further lines.
func (b *Board) queueLines() []string {
	reasons := map[string]bool{}
	for _, w := range b.queued {
		if w.Note != "" {
			reasons[w.Note] = true
		}
	}
	// Only the oldest rollouts of a long queue send events.
	text := fmt.Sprintf("%d queued", max(len(b.queued), b.trials-b.before-b.ended-len(b.running)))
	if len(reasons) > 0 {
		text += ": " + strings.Join(slices.Sorted(maps.Keys(reasons)), ";\n")
	}
	return strings.Split(text, "\n")
}

// queueDrawn returns queueLines for a terminal. Long lines are wrapped, and those beyond
// rows are left out.
func (b *Board) queueDrawn(columns, rows int) (lines []string) {
	for i, l := range b.queueLines() {
		indent := "  "
		if i > 0 {
			indent = "    "
		}
		for text := []rune(plain.Line(l, maxReason)); len(text) > 0; indent = "      " {
			n := wrapAt(text, columns-len(indent))
			lines = append(lines, indent+string(text[:n]))
			text = []rune(strings.TrimLeft(string(text[n:]), " "))
		}
	}
	if more := len(lines) - rows; more > 0 {
		lines = append(lines[:rows-1], fmt.Sprintf("    and %d more lines", more+1))
	}
	return lines
}

// wrapAt returns the number of characters of the first line of a text.
func wrapAt(text []rune, columns int) int {
	if len(text) <= columns {
		return len(text)
	}
	for n := columns; n > columns/2; n-- {
		if text[n] == ' ' {
			return n
		}
	}
	return max(columns, 1)
}

func (b *Board) runningLine(name string, r *row, now time.Time, columns int) string {
	state := cmp.Or(r.phase, "begins")
	if r.wait != nil {
		w := *r.wait
		w.MS = now.Sub(r.since).Milliseconds()
		state = w.String()
	}
	left := fmt.Sprintf("  %-28s %6s %4d calls  ", plain.Line(name, 28), short(now.Sub(r.begun)), r.calls)
	return left + plain.Line(state, max(columns-len([]rune(left)), 8))
}

// figures returns a short text with the numbers so far, such as the mean reward.
func (b *Board) figures(now time.Time) string {
	var parts []string
	if b.known > 0 {
		mean := b.reward / float64(b.known)
		parts = append(parts, "mean "+Reward(&mean))
	}
	if b.faults > 0 {
		parts = append(parts, errorCount(b.faults))
	}
	spent := now.Sub(b.started)
	parts = append(parts, short(spent))
	if left := b.trials - b.before - b.ended; left > 0 && b.ended > 0 {
		parts = append(parts, "ETA "+short(spent/time.Duration(b.ended)*time.Duration(left)))
	}
	return strings.Join(parts, ", ")
}

// status returns a line about the whole job, for output that is not a terminal.
func (b *Board) status(now time.Time) string {
	s := fmt.Sprintf("%d of %d ended, %d run, %s", b.before+b.ended, b.trials, len(b.running), b.figures(now))
	if len(b.queued) > 0 {
		s += "; " + strings.Join(b.queueLines(), " ")
	}
	waits := map[string]int{}
	for _, r := range b.running {
		if r.wait != nil {
			w := *r.wait
			w.Call, w.MS, w.Fault = 0, 0, nil
			if w.For != schema.WaitSandbox { // its notes are few, and the same for many
				w.Note = ""
			}
			waits[w.String()]++
		}
	}
	for _, text := range slices.Sorted(maps.Keys(waits)) {
		s += fmt.Sprintf("; %d: %s", waits[text], text)
	}
	if len(b.running) == 0 && len(b.queued) == 0 && now.Sub(b.heard) >= unheardAfter {
		s += "; none runs: they wait for a worker"
	}
	return plain.Line(s, 1000)
}

// short writes a duration in at most six characters.
func short(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
