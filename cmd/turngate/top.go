package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/plain"
)

// Values of --sort, which the key s changes.
const (
	sortName = "name"
	sortBusy = "busy"
	sortFree = "free"
	sortAge  = "age" // of the lanes
)

// topFlags are the flags of turngate top.
type topFlags struct {
	nats     natsFlags
	output   string
	sort     string
	interval time.Duration
	count    int
	once     bool
}

// topScreen is a running system at one moment.
type topScreen struct {
	At      time.Time    `json:"at"`
	Workers []topWorker  `json:"workers"`
	Lanes   []queueEntry `json:"lanes"`
	Dead    uint64       `json:"dead"` // requests that no worker could read
	operate.ActivitySum
	err error // the server could not be read; the figures are older ones
}

// topWorker is a worker in a topScreen.
type topWorker struct {
	Worker   string `json:"worker"`
	Running  int    `json:"running"`
	Slots    int    `json:"slots"`
	Draining bool   `json:"draining"`
	Full     string `json:"full,omitempty"` // reason for which it takes no request now
}

func topCommand() *cobra.Command {
	f := &topFlags{}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show a running system, drawn anew each second: workers, queues, rollouts by phase, model calls",
		Long: "Show a running system, drawn anew each second, with the credentials of an operator (ops.nk): workers with their used slots, lanes with the number of queued requests and the age of the oldest one, running rollouts by phase, and the model calls of the last minute with their latency.\n\n" +
			"Keys: q ends it, s sorts by the next of name, busy, free and age. Without a terminal it prints one screen as text.",
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			return usageOf(atLeast("interval", f.interval, 100*time.Millisecond), atLeast("count", f.count, 0))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := f.nats.dial(cmd.Context(), broker.RoleOps, broker.RoleOps, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			return f.run(cmd, b)
		},
	}
	f.nats.add(cmd, defaultURL)
	fl := cmd.Flags()
	fl.DurationVarP(&f.interval, "interval", "d", time.Second, "time from one screen to the next")
	fl.IntVarP(&f.count, "count", "n", 0, "number of screens (0: until q or Ctrl-C; without a terminal 1)")
	fl.BoolVar(&f.once, "once", false, "print one screen as text, as -n 1 does")
	fl.Var(newChoice(&f.sort, sortName, sortBusy, sortFree, sortAge), "sort", "order: name, busy (most running rollouts first), free (most free slots first) or age (lanes: the oldest request first)")
	addOutput(fl, &f.output, formatTable, formatJSON)
	return cmd
}

// run shows screens until the user ends it, or --count of them.
func (f *topFlags) run(cmd *cobra.Command, b *broker.Broker) error {
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	activity := operate.NewActivity()
	followed, ready := make(chan error, 1), make(chan struct{})
	go func() { followed <- activity.Follow(ctx, b, func() { close(ready) }) }()
	live := isTerminal(os.Stdin) && isTerminal(os.Stdout) && f.output == formatTable && f.count == 0 && !f.once
	left := f.count
	if f.once || !live && left == 0 {
		left = 1
	}
	var keys <-chan byte
	out := cmd.OutOrStdout()
	if live {
		screen, restore, err := openScreen(out)
		if err != nil {
			return err
		}
		defer restore()
		keys, out = readKeys(os.Stdin), screen
	} else {
		select {
		case <-ready:
		case err := <-followed:
			return cmp.Or(context.Cause(cmd.Context()), err)
		}
	}
	backlogs := queue.NewBacklogs(b)
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	var last topScreen
	for {
		now, err := readTop(ctx, b, backlogs, activity)
		switch {
		case ctx.Err() != nil:
			return context.Cause(cmd.Context())
		case err != nil && !live:
			return err
		case err != nil: // it may be back in a moment
			last.err = err
		default:
			last = now
		}
		if err := f.show(out, &last, live); err != nil {
			return err
		}
		if left > 0 {
			if left--; left == 0 {
				return nil
			}
		}
		for drawn := true; drawn; {
			select {
			case <-ctx.Done():
				return context.Cause(cmd.Context())
			case err := <-followed:
				if ctx.Err() == nil {
					return err
				}
			case <-tick.C:
				drawn = false
			case key := <-keys:
				switch key {
				case 'q', 'Q':
					return nil
				case 3, 4: // Ctrl-C and Ctrl-D of a raw terminal
					return &exitError{code: exitInterrupted}
				case 's', 'S':
					orders := []string{sortName, sortBusy, sortFree, sortAge}
					f.sort = orders[(slices.Index(orders, f.sort)+1)%len(orders)]
					if err := f.show(out, &last, live); err != nil {
						return err
					}
				}
			}
		}
	}
}

// readTop reads a running system.
func readTop(ctx context.Context, b *broker.Broker, backlogs *queue.Backlogs, activity *operate.Activity) (topScreen, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	now := topScreen{At: time.Now(), Workers: []topWorker{}, Lanes: []queueEntry{}}
	workers, err := operate.On(b, "").Workers(ctx)
	if err != nil {
		return now, err
	}
	waiting, err := backlogs.Read(ctx)
	if err != nil {
		return now, err
	}
	for _, p := range workers {
		now.Workers = append(now.Workers, topWorker{p.Worker, len(p.Running), p.Slots, p.Draining, plain.Line(p.Full, 120)})
	}
	for _, w := range waiting.Lanes {
		now.Lanes = append(now.Lanes, entryOfLane(&w, &waiting, workers, now.At))
	}
	now.Dead, now.ActivitySum = waiting.Dead, activity.Sum(now.At, workers)
	return now, nil
}

// show sorts and prints a screen. A live one replaces the former one.
func (f *topFlags) show(w io.Writer, s *topScreen, live bool) error {
	slices.SortFunc(s.Workers, func(a, b topWorker) int {
		by := 0
		switch f.sort {
		case sortBusy:
			by = cmp.Compare(b.Running, a.Running)
		case sortFree:
			by = cmp.Compare(b.Slots-b.Running, a.Slots-a.Running)
		}
		return cmp.Or(by, cmp.Compare(a.Worker, b.Worker))
	})
	slices.SortFunc(s.Lanes, func(a, b queueEntry) int {
		by := 0
		if f.sort == sortAge {
			by = cmp.Compare(ageOf(&b), ageOf(&a))
		}
		return cmp.Or(by, cmp.Compare(a.Trainer, b.Trainer), cmp.Compare(a.Lane, b.Lane))
	})
	if f.output == formatJSON {
		return printJSON(w, s)
	}
	columns, rows := 0, 0
	if live {
		columns, rows = 80, 24
		if c, r, err := term.GetSize(int(os.Stdout.Fd())); err == nil && c > 0 && r > 0 {
			columns, rows = c, r
		}
	}
	lines, err := f.lines(s, columns, rows)
	if err != nil {
		return err
	}
	if !live {
		_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n\n")
		return err
	}
	_, err = io.WriteString(w, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[J")
	return err
}

// ageOf returns the age of the oldest request of a lane in seconds; -1: there is none.
func ageOf(e *queueEntry) float64 {
	if e.Oldest == nil {
		return -1
	}
	return *e.Oldest
}

// lines returns the text of a screen for a terminal of this size; 0: for none.
func (f *topFlags) lines(s *topScreen, columns, rows int) ([]string, error) {
	slots, used, draining, queued, parked, running := 0, 0, 0, uint64(0), uint64(0), 0
	followed := map[string]bool{} // workers with a process that takes rollouts, in the slots of the others, too
	for _, w := range s.Workers {
		followed[w.Worker] = followed[w.Worker] || !w.Draining
	}
	for _, w := range s.Workers {
		used += w.Running
		switch {
		case !w.Draining:
			slots += w.Slots
		case followed[w.Worker]:
			draining++
		default: // its other slots are of no use
			draining++
			slots += w.Running
		}
	}
	for _, l := range s.Lanes {
		queued, parked = queued+l.Queued, parked+l.Parked.Delay+l.Parked.Needs
	}
	var phases []string
	for _, name := range slices.Sorted(maps.Keys(s.Phases)) {
		running += s.Phases[name]
		phases = append(phases, fmt.Sprintf("%d %s", s.Phases[name], oneLine(name, 40)))
	}
	lines := []string{
		fmt.Sprintf("turngate top  %s  %s  sorted by %s", s.At.Format("15:04:05"), cmp.Or(f.nats.context, broker.ShownURL(f.nats.url)), f.sort),
		fmt.Sprintf("workers   %d (%d draining), %d of %d slots used", len(s.Workers), draining, used, slots),
		fmt.Sprintf("queue     %d queued, %d parked, %d unreadable", queued, parked, s.Dead),
		fmt.Sprintf("rollouts  %d run%s", running, strings.TrimRight(": "+strings.Join(phases, ", "), ": ")),
		fmt.Sprintf("calls     %.1f/s, p50 %s, p99 %s, %d failed, in the last minute", s.Calls.PerSecond, latency(s.Calls.P50), latency(s.Calls.P99), s.Calls.Failed),
	}
	if s.err != nil {
		lines[0] = "not read since " + s.At.Format("15:04:05") + ": " + plain.Line(s.err.Error(), 500)
	}
	workers := &table{width: columns, rows: [][]string{{"WORKER", "RUNNING", "SLOTS", "STATE"}}, names: []string{"WORKER"}}
	for _, w := range s.Workers {
		state := "ready"
		switch {
		case w.Draining:
			state = "draining"
		case w.Full != "":
			state = "full: " + w.Full
		}
		workers.row(w.Worker, w.Running, w.Slots, state)
	}
	lanes := &table{width: columns, rows: [][]string{{"TRAINER", "LANE", "QUEUED", "OLDEST", "RUNNING", "DELAYED", "UNFIT"}}}
	for _, e := range s.Lanes {
		if e.Queued+e.Taken+e.Parked.Delay+e.Parked.Needs > 0 {
			lanes.row(dash(e.Trainer), e.Lane, e.Queued, oldestText(&e), e.Taken, e.Parked.Delay, e.Parked.Needs)
		}
	}
	room := len(lanes.rows) + len(workers.rows) // rows of both tables
	if rows > 0 {
		room = max(rows-len(lines)-4, 4)
	}
	for i, t := range []*table{lanes, workers} {
		if i == 0 {
			t.shorten(max(room/2, room-len(workers.rows)))
		} else {
			t.shorten(room)
		}
		room -= len(t.rows)
		var text bytes.Buffer
		t.out = &text
		if err := t.flush(); err != nil {
			return nil, err
		}
		lines = append(append(lines, ""), strings.Split(strings.TrimRight(text.String(), "\n"), "\n")...)
	}
	if rows > 0 {
		lines = append(lines[:min(len(lines), rows-1)], "q ends, s sorts by the next of name, busy, free, age")
	}
	for i := range lines {
		if lines[i] = strings.TrimRight(plain.Text(lines[i]), " "); columns > 0 {
			lines[i] = cutLine(lines[i], columns)
		}
	}
	return lines, nil
}

// cutLine shortens a line and keeps its spaces.
func cutLine(s string, columns int) string {
	if r := []rune(s); len(r) > columns {
		return string(r[:max(columns-1, 0)]) + "…"
	}
	return s
}

func latency(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return time.Duration(*seconds * float64(time.Second)).Round(time.Millisecond).String()
}

// openScreen switches a terminal to a screen of its own, and its keys to one at a time,
// until restore is called.
func openScreen(out io.Writer) (screen io.Writer, restore func(), err error) {
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return nil, nil, fmt.Errorf("read single keys: %w", err)
	}
	screen = plain.Raw(out) // the text is cleaned before
	_, _ = io.WriteString(screen, "\x1b[?1049h\x1b[?25l")
	return screen, func() {
		_, _ = io.WriteString(screen, "\x1b[?25h\x1b[?1049l")
		_ = term.Restore(int(os.Stdin.Fd()), before)
	}, nil
}

// readKeys passes the bytes of a terminal on. It ends with the process: a read cannot be
// interrupted.
func readKeys(from io.Reader) <-chan byte {
	keys := make(chan byte)
	go func() {
		b := make([]byte, 64)
		for {
			n, err := from.Read(b)
			for _, key := range b[:n] {
				keys <- key
			}
			if err != nil {
				return
			}
		}
	}()
	return keys
}
