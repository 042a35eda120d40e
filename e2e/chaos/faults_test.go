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

	"github.com/turngate/turngate/subjects"
)

// injector injects random faults into a bench, and counts them.
type injector struct {
	b        *bench
	tap      *tap
	rng      *rand.Rand
	count    map[string]int
	kills    []kill
	dead     map[*process]int // kills of trainers
	lefts    []string         // leftovers of workers that ended by themselves
	more     []string         // kinds to inject more often
	also     []fault          // kinds of the test's own
	only     []string         // kinds to inject; empty: all
	pace     time.Duration    // additional time between two faults
	problems []error
	bg       sync.WaitGroup
	busy     map[*process]bool
	mu       sync.Mutex
}

func newInjector(b *bench, p *tap, seed uint64) *injector {
	return &injector{b: b, tap: p, rng: rand.New(rand.NewPCG(seed, 0)), count: map[string]int{}, dead: map[*process]int{}, busy: map[*process]bool{}}
}

// kill records the death of a worker process by a fault.
type kill struct {
	pid int
	at  time.Time
}

// fault is one kind of fault.
type fault struct {
	name   string
	weight int
	do     func(context.Context)
}

// timing of the runs: the protocol's default durations divided by speed.
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
		{"bytes of one direction are held", 2, func(ctx context.Context) { f.partition(ctx, f.rng.IntN(2) == 0, false) }},
		{"messages of one direction are lost", 2, f.oneWay},
		{"5 % of messages are lost", 2, f.lossy},
		{"latency", 2, f.latency},
		{"connections cut", 2, f.cut},
		{"clock stepped", 3, f.stepClock},
		{"trainer killed", 3, f.killTrainer},
		{"trainer stopped", 2, f.stopTrainer},
		{"broker killed", 2, f.killBroker},
		{"broker stopped", 2, f.stopBroker},
		{"worker drained", 2, f.drain},
		{"duplicate submitted", 5, f.duplicate},
		{"acks and results sent again", 5, f.sendAgain},
		{"stalled tap", 1, f.stalledTap},
	}
	if len(f.only) > 0 {
		kinds = slices.DeleteFunc(kinds, func(k fault) bool { return !slices.Contains(f.only, k.name) })
	}
	kinds = append(kinds, f.also...)
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	var order []int // the kinds in more, then every kind once, then random ones
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

// pick returns a worker without a fault in progress, if there is one.
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

// after calls a function later, even after the end of the faults.
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

// latency delays each direction by the 500 ms of a bad network in terms of the
// run's durations.
func (f *injector) latency(ctx context.Context) {
	w := f.pick()
	if w == nil {
		return
	}
	w.proxy.Set(false, false, 500*time.Millisecond/time.Duration(f.b.speed))
	f.after(ctx, 2*time.Second, func() { w.proxy.Heal(); f.release(w) })
}

// oneWay loses every message of one direction, with the connection open.
func (f *injector) oneWay(ctx context.Context) {
	w := f.pick()
	if w == nil {
		return
	}
	share := float64(f.rng.IntN(2))
	w.proxy.Lose(share, 1-share)
	d := time.Duration(f.rng.IntN(int((lease + confirm + ackWait).Milliseconds()))) * time.Millisecond
	f.after(ctx, d, func() { w.proxy.Heal(); f.release(w) })
}

func (f *injector) lossy(ctx context.Context) {
	w := f.pick()
	if w == nil {
		return
	}
	w.proxy.Lose(0.05, 0.05)
	f.after(ctx, 4*time.Second, func() { w.proxy.Heal(); f.release(w) })
}

// cut ends the connections of a worker, with the loss of the bytes on their way.
func (f *injector) cut(context.Context) {
	if w := f.pick(); w != nil {
		w.proxy.Cut()
		f.release(w)
	}
}

// stepClock moves the wall clock of a worker or of a trainer in Go. One with a fault in
// progress may be suspended, and is left alone.
func (f *injector) stepClock(context.Context) {
	by := []time.Duration{time.Hour, -time.Hour, 20 * time.Second, -20 * time.Second}[f.rng.IntN(4)]
	f.mu.Lock()
	var all []*process
	for _, p := range slices.Concat(f.b.workers, f.b.trainers) {
		if !f.busy[p] && p.alive() && p.debug != "" {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		f.mu.Unlock()
		return
	}
	p := all[f.rng.IntN(len(all))]
	f.busy[p] = true
	f.mu.Unlock()
	defer f.release(p)
	if err := p.stepClock(by); err != nil && p.alive() {
		f.problem(err)
	}
}

// problem notes that a fault could not be injected.
func (f *injector) problem(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = append(f.problems, err)
}

func (f *injector) killTrainer(context.Context) {
	t := f.anyTrainer()
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.alive() {
		f.dead[t]++
	}
	f.b.kill(t)
	f.b.start(t)
}

func (f *injector) anyTrainer() *process { return f.b.trainers[f.rng.IntN(len(f.b.trainers))] }

// killed returns how often a trainer was killed.
func (f *injector) killed(t *process) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead[t]
}

// stopTrainer suspends a trainer with its connection open.
func (f *injector) stopTrainer(ctx context.Context) {
	t := f.anyTrainer()
	signal := func(s syscall.Signal, busy bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.b.signal(t, s)
		f.busy[t] = busy
	}
	signal(syscall.SIGSTOP, true)
	f.after(ctx, time.Duration(f.rng.IntN(8000))*time.Millisecond, func() { signal(syscall.SIGCONT, false) })
}

// stopBroker suspends the server, for less than a lease or for longer.
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
		f.leaves(f.b.stop(w))
		f.b.start(w)
		f.release(w)
	})
}

func (f *injector) leaves(left []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lefts = append(f.lefts, left...)
}

// duplicate puts requests on the queue again, without a message id, so that the
// server does not drop them as duplicates.
func (f *injector) duplicate(context.Context) {
	for _, id := range f.tap.known(3) {
		data, err := f.tap.copyOf(id)
		if err != nil {
			continue // the broker is down
		}
		_ = f.tap.nc.PublishMsg(&nats.Msg{Subject: subjects.Request(f.rng.IntN(4), id.Trainer()), Data: data})
	}
}

// sendAgain publishes copies of acks and results that were on the wire, with the
// rights of a worker.
func (f *injector) sendAgain(context.Context) {
	f.tap.mu.Lock()
	var all []*nats.Msg
	for range 20 {
		if m := f.tap.copies[f.rng.IntN(keptCopies)]; m != nil {
			all = append(all, m)
		}
	}
	f.tap.mu.Unlock()
	for _, m := range all {
		_ = f.tap.nc.PublishMsg(m) // the broker may be down
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
	if _, err := nc.Subscribe(subjects.EventFilter, func(*nats.Msg) { <-ctx.Done() }); err != nil {
		nc.Close()
		return
	}
	f.after(ctx, 5*time.Second, nc.Close)
}

// enough tells the trainer to submit no more.
func (f *injector) enough() error {
	return os.WriteFile(filepath.Join(f.b.dir, "enough"), nil, 0o600)
}

// mend ends all faults and restarts the dead processes.
func (f *injector) mend() {
	if !f.b.nats.alive() {
		f.b.start(f.b.nats)
	}
	for _, t := range f.b.trainers {
		f.b.signal(t, syscall.SIGCONT)
	}
	for _, w := range f.b.workers {
		if w.proxy != nil {
			w.proxy.Heal()
		}
		f.b.signal(w, syscall.SIGCONT)
		if !w.alive() {
			f.b.start(w)
		}
	}
	for _, t := range f.b.trainers {
		if !t.alive() && !t.over() {
			f.b.start(t)
		}
	}
}

// over reports whether the process ended by itself with status 0.
func (p *process) over() bool {
	return !p.alive() && p.cmd != nil && !p.down && p.cmd.ProcessState != nil && p.cmd.ProcessState.Success()
}

// allEndedAsItIs waits until every trainer has all its results, and mends nothing.
func (f *injector) allEndedAsItIs(limit time.Duration) bool {
	over := time.After(limit)
	for _, t := range f.b.trainers {
		select {
		case <-t.ended:
		case <-over:
			return false
		}
	}
	return true
}

// allEnded waits until every trainer has all its results, and restarts dead
// processes meanwhile.
func (f *injector) allEnded(limit time.Duration) bool {
	over := time.After(limit)
	for _, t := range f.b.trainers {
		for !t.over() {
			select {
			case <-t.ended:
				if !t.over() {
					f.mend()
				}
			case <-time.After(time.Second):
				f.mend() // a poison job may have killed one more
			case <-over:
				return false
			}
		}
	}
	return true
}
