package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// injector does random faults to a bench, and counts them.
type injector struct {
	b     *bench
	tap   *tap
	rng   *rand.Rand
	count map[string]int
	kills []kill
	lefts []string      // what workers that ended by themselves still had
	more  []string      // kinds that come more often
	only  []string      // the kinds there are; empty: all
	pace  time.Duration // more time between two
	bg    sync.WaitGroup
	busy  map[*process]bool
	mu    sync.Mutex
}

// kill is when a worker process died of a fault.
type kill struct {
	pid int
	at  time.Time
}

// fault is one kind of them.
type fault struct {
	name   string
	weight int
	do     func(context.Context)
}

// timing of the runs, in the protocol's own terms divided by speed.
const (
	ackWait = 60 * time.Second / speed
	lease   = 40 * time.Second / speed
	confirm = 20 * time.Second / speed
)

func (f *injector) run(ctx context.Context) {
	defer f.bg.Wait()
	kinds := []fault{
		{"worker killed", 6, f.killWorker},
		{"all workers killed", 1, f.killAll},
		{"worker stopped for a moment", 3, func(ctx context.Context) { f.stopWorker(ctx, lease/4) }},
		{"worker stopped beyond its lease", 4, func(ctx context.Context) { f.stopWorker(ctx, lease+confirm+ackWait) }},
		{"partition with late bytes", 4, func(ctx context.Context) { f.partition(ctx, true, true) }},
		{"one-way loss", 2, func(ctx context.Context) { f.partition(ctx, f.rng.IntN(2) == 0, false) }},
		{"latency", 2, f.latency},
		{"trainer killed", 3, f.killTrainer},
		{"trainer stopped", 2, f.stopTrainer},
		{"broker killed", 2, f.killBroker},
		{"broker stopped", 2, f.stopBroker},
		{"worker drained", 2, f.drain},
		{"duplicate submitted", 5, f.duplicate},
		{"stalled tap", 1, f.stalledTap},
	}
	if len(f.only) > 0 {
		kinds = slices.DeleteFunc(kinds, func(k fault) bool { return !slices.Contains(f.only, k.name) })
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	var order []int // those asked for, every kind once, then as it comes
	for i, k := range kinds {
		if slices.Contains(f.more, k.name) {
			order = append(order, i, i, i)
		}
	}
	order = append(order, f.rng.Perm(len(kinds))...)
	for wait(ctx, f.pace+time.Duration(300+f.rng.IntN(900))*time.Millisecond) {
		i := 0
		if len(order) > 0 {
			i, order = order[0], order[1:]
		} else {
			for n := f.rng.IntN(total); n >= kinds[i].weight; i++ {
				n -= kinds[i].weight
			}
		}
		f.revive()
		f.note(kinds[i].name)
		kinds[i].do(ctx)
	}
}

// revive starts workers again that a poison job has killed, as a supervisor
// would.
func (f *injector) revive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.b.workers {
		if !f.busy[w] && !w.alive() {
			f.b.start(w)
		}
	}
}

func (f *injector) note(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[kind]++
}

// pick takes a worker that no other fault is at, if there is one.
func (f *injector) pick() *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.rng.Perm(len(f.b.workers)) {
		if w := f.b.workers[i]; !f.busy[w] && w.alive() {
			f.busy[w] = true
			return w
		}
	}
	return nil
}

func (f *injector) release(w *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.busy, w)
}

// after does something later, also when the run is over.
func (f *injector) after(ctx context.Context, d time.Duration, do func()) {
	f.bg.Go(func() {
		wait(ctx, d)
		do()
	})
}

func (f *injector) died(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kills = append(f.kills, kill{pid, time.Now()})
}

func (f *injector) killWorker(ctx context.Context) {
	w := f.pick()
	if w == nil {
		return
	}
	pid := w.cmd.Process.Pid
	f.b.kill(w)
	f.died(pid)
	f.after(ctx, time.Duration(f.rng.IntN(8000))*time.Millisecond, func() { f.b.start(w); f.release(w) })
}

func (f *injector) killAll(ctx context.Context) {
	for range f.b.workers {
		if w := f.pick(); w != nil {
			pid := w.cmd.Process.Pid
			f.b.kill(w)
			f.died(pid)
			f.after(ctx, time.Second, func() { f.b.start(w); f.release(w) })
		}
	}
}

func (f *injector) stopWorker(ctx context.Context, d time.Duration) {
	w := f.pick()
	if w == nil {
		return
	}
	f.b.signal(w, syscall.SIGSTOP)
	f.after(ctx, d, func() { f.b.signal(w, syscall.SIGCONT); f.release(w) })
}

func (f *injector) partition(ctx context.Context, client, server bool) {
	w := f.pick()
	if w == nil {
		return
	}
	if !client && !server {
		server = true
	}
	w.proxy.Set(client, server, 0)
	d := time.Duration(500+f.rng.IntN(int((lease+confirm+ackWait).Milliseconds()))) * time.Millisecond
	f.after(ctx, d, func() { w.proxy.Heal(); f.release(w) })
}

func (f *injector) latency(ctx context.Context) {
	w := f.pick()
	if w == nil {
		return
	}
	w.proxy.Set(false, false, 50*time.Millisecond)
	f.after(ctx, 2*time.Second, func() { w.proxy.Heal(); f.release(w) })
}

func (f *injector) killTrainer(context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.b.kill(f.b.trainer)
	f.b.start(f.b.trainer)
}

// stopTrainer has a trainer stand still with its connection open.
func (f *injector) stopTrainer(ctx context.Context) {
	signal := func(s syscall.Signal) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.b.signal(f.b.trainer, s)
	}
	signal(syscall.SIGSTOP)
	f.after(ctx, time.Duration(f.rng.IntN(8000))*time.Millisecond, func() { signal(syscall.SIGCONT) })
}

// stopBroker has the server stand still, for less than a lease or for long.
func (f *injector) stopBroker(ctx context.Context) {
	f.b.signal(f.b.nats, syscall.SIGSTOP)
	wait(ctx, time.Duration(f.rng.IntN(int((lease+confirm+ackWait).Milliseconds())))*time.Millisecond)
	f.b.signal(f.b.nats, syscall.SIGCONT)
}

func (f *injector) killBroker(ctx context.Context) {
	f.b.kill(f.b.nats)
	down := time.Duration(f.rng.IntN(4000)) * time.Millisecond
	if f.rng.IntN(4) == 0 {
		down = 5 * ackWait
	}
	wait(ctx, down)
	f.b.start(f.b.nats)
}

func (f *injector) drain(ctx context.Context) {
	w := f.pick()
	if w == nil {
		return
	}
	f.bg.Go(func() {
		left, ok := f.b.stop(w)
		f.leaves(w, left, ok)
		f.b.start(w)
		f.release(w)
	})
}

func (f *injector) leaves(w *process, left history.Left, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok {
		f.lefts = append(f.lefts, w.role+" did not end by itself")
	} else if left != (history.Left{}) {
		f.lefts = append(f.lefts, fmt.Sprintf("%s ended and left %+v", w.role, left))
	}
}

// duplicate puts requests on the queue again, past the server's own window.
func (f *injector) duplicate(context.Context) {
	f.tap.mu.Lock()
	var ids []schema.ID
	for id := range f.tap.states {
		if ids = append(ids, id); len(ids) == 3 {
			break
		}
	}
	f.tap.mu.Unlock()
	for _, id := range ids {
		data, err := f.tap.copyOf(id)
		if err != nil {
			continue // the broker is down
		}
		_ = f.tap.nc.PublishMsg(&nats.Msg{Subject: subjects.Request(f.rng.IntN(4), id.Trainer()), Data: data})
	}
}

// stalledTap is a subscriber that never reads.
func (f *injector) stalledTap(ctx context.Context) {
	seed, err := nats.NkeyOptionFromSeed(f.b.creds("ops"))
	if err != nil {
		return
	}
	nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", f.b.port), seed, nats.CustomInboxPrefix("_INBOX.ops.ops"))
	if err != nil {
		return
	}
	if _, err := nc.Subscribe("rollout.>", func(*nats.Msg) { <-ctx.Done() }); err != nil {
		nc.Close()
		return
	}
	f.after(ctx, 5*time.Second, nc.Close)
}

// enough tells the trainer to submit no more.
func (f *injector) enough() error {
	return os.WriteFile(filepath.Join(f.b.dir, "enough"), nil, 0o600)
}

// mend brings everything back.
func (f *injector) mend() {
	if !f.b.nats.alive() {
		f.b.start(f.b.nats)
	}
	f.b.signal(f.b.trainer, syscall.SIGCONT)
	for _, w := range f.b.workers {
		w.proxy.Heal()
		f.b.signal(w, syscall.SIGCONT)
		if !w.alive() {
			f.b.start(w)
		}
	}
	if !f.b.trainer.alive() && !f.b.trainer.over() {
		f.b.start(f.b.trainer)
	}
}

// over reports whether the process ended by itself and well.
func (p *process) over() bool {
	return !p.alive() && p.cmd != nil && !p.down && p.cmd.ProcessState != nil && p.cmd.ProcessState.Success()
}
