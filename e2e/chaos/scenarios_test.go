package chaos_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/testenv"
)

// full skips what takes minutes, unless CHAOS_FULL asks for it, as CI and
// `make chaos` do.
func full(t *testing.T) {
	t.Helper()
	if os.Getenv("CHAOS_FULL") == "" {
		t.Skip("SKIPPED: it takes minutes; CHAOS_FULL=1 runs it")
	}
	t.Parallel()
}

// settle lets a bench come to its end and checks it.
func settle(t *testing.T, b *bench, p *tap, limit time.Duration) *report {
	t.Helper()
	f := &injector{b: b, tap: p, busy: map[*process]bool{}}
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	stuck := false
	select {
	case <-b.trainer.ended:
		stuck = !b.trainer.over()
	case <-time.After(limit):
		stuck = true
	}
	r := f.finish(t, stuck)
	for invariant, list := range r.violations {
		t.Errorf("%s: %s", invariant, strings.Join(list[:min(len(list), 5)], "; "))
	}
	return r
}

// attempts are the highest attempt of every rollout that ran.
func attempts(t *testing.T, b *bench) (most int, boxes int) {
	t.Helper()
	all, err := lines[history.Box](filepath.Join(b.dir, "sandboxes.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.Op == "create" {
			most = max(most, x.Attempt)
			boxes++
		}
	}
	return most, boxes
}

// away runs eight rollouts while a process is not there for a while: it dies
// and is started again, or it stands still with its connections open. None is
// run twice.
func away(t *testing.T, workers int, calls string, who func(*bench) *process, d, limit time.Duration) {
	t.Helper()
	full(t)
	for how, leave := range map[string]func(*bench, *process) (back func()){
		"killed": func(b *bench, p *process) func() {
			b.kill(p)
			return func() { b.start(p) }
		},
		"stopped": func(b *bench, p *process) func() {
			b.signal(p, syscall.SIGSTOP)
			return func() { b.signal(p, syscall.SIGCONT) }
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, build(t), workers, nil, "-rollouts", "8", "-calls", calls)
			p := openTap(t, b)
			b.start(b.trainer)
			awaitBoxes(t, b, 8)
			back := leave(b, who(b))
			<-time.After(d)
			back()
			settle(t, b, p, limit)
			if most, n := attempts(t, b); most != 1 || n != 8 {
				t.Errorf("%d executions of 8 rollouts, highest attempt %d", n, most)
			}
		})
	}
}

// A server that is away for five times the ack wait costs no live rollout its
// attempt: the workers hold, and go on.
func TestTheBrokerIsDownForLong(t *testing.T) {
	away(t, 3, "12", func(b *bench) *process { return b.nats }, 5*ackWait, 90*time.Second)
}

// A trainer that is away for longer than its silence is noticed costs time and
// nothing else.
func TestTheTrainerIsAway(t *testing.T) {
	away(t, 2, "6", func(b *bench) *process { return b.trainer }, 18*time.Second, 60*time.Second)
}

// A server that comes back with nothing is filled again by the trainer.
func TestTheStoreIsWiped(t *testing.T) {
	full(t)
	b := newBench(t, build(t), 3, nil, "-rollouts", "40", "-calls", "4")
	p := openTap(t, b)
	b.start(b.trainer)
	awaitBoxes(t, b, 12)
	b.kill(b.nats)
	if err := os.RemoveAll(filepath.Join(b.dir, "nats", "nats")); err != nil {
		t.Fatal(err)
	}
	b.start(b.nats)
	p.mu.Lock()
	clear(p.kept) // of a store that is no more
	clear(p.states)
	p.mu.Unlock()
	f := &injector{b: b, tap: p, busy: map[*process]bool{}}
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.trainer.ended:
	case <-time.After(100 * time.Second):
		t.Fatal("the trainer still waits for results")
	}
	// What had its result before is not run again: only what the new store has
	// is held to the invariants.
	told, err := lines[history.Trained](filepath.Join(b.dir, "trainer-alpha.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	submitted, results := map[string]bool{}, map[string]int{}
	for _, l := range told {
		switch l.Op {
		case "submit":
			submitted[string(l.ID)] = true
		case "result":
			results[string(l.ID)]++
		}
	}
	for id := range submitted {
		if results[id] != 1 {
			t.Errorf("the trainer got %d results of %s", results[id], id)
		}
	}
	for _, w := range b.workers {
		if left, ok := b.stop(w); !ok || left != (history.Left{}) {
			t.Errorf("%s left %+v", w.role, left)
		}
	}
}

// A full disk stops everything and loses nothing.
func TestTheDiskIsFull(t *testing.T) {
	full(t)
	b := emptyBench(t, build(t))
	store := filepath.Join(b.dir, "nats")
	if err := os.Mkdir(store, 0o700); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64m", "none", store).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a small disk needs the right to mount: %v: %s", err, said)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", store).Run() })
	b.begin(3, nil, []string{"-rollouts", "60"})
	p := openTap(t, b)
	b.start(b.trainer)
	awaitBoxes(t, b, 6)
	ballast := filepath.Join(store, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	f.Close()
	<-time.After(2 * ackWait)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	b.kill(b.nats) // a server whose writes failed is started again by its supervisor
	b.start(b.nats)
	settle(t, b, p, 120*time.Second)
}

// With the protocol's own durations, a killed worker's rollouts run elsewhere
// within 90 s.
func TestTheRealDurations(t *testing.T) {
	full(t)
	b := emptyBench(t, build(t))
	b.speed = 1
	b.begin(1, nil, []string{"-rollouts", "4", "-calls", "30"})
	p := openTap(t, b)
	b.start(b.trainer)
	awaitBoxes(t, b, 4)
	b.await(b.add(), "ready")
	b.kill(b.workers[0])
	start := time.Now()
	limit := time.After(100 * time.Second)
	for {
		if _, n := attempts(t, b); n >= 8 {
			break
		}
		select {
		case <-limit:
			t.Fatal("nobody took the rollouts over")
		case <-time.After(100 * time.Millisecond):
		}
	}
	took := time.Since(start)
	t.Logf("all four rollouts of a killed worker run elsewhere after %s", took.Round(100*time.Millisecond))
	if took > 90*time.Second {
		t.Errorf("it took %s", took)
	}
	r := settle(t, b, p, 120*time.Second)
	if r.takeovers != 4 {
		t.Errorf("%d take-overs", r.takeovers)
	}
}

// Three servers keep three copies: one may die at any time, and two only stop
// everything.
func TestACluster(t *testing.T) {
	full(t)
	bin := build(t)
	b := emptyBench(t, bin)
	creds := filepath.Join(b.dir, "nats", "creds")
	ports, routes := []int{testenv.FreePort(t), testenv.FreePort(t), testenv.FreePort(t)}, []string{}
	clusterPorts := []int{testenv.FreePort(t), testenv.FreePort(t), testenv.FreePort(t)}
	for _, p := range clusterPorts {
		routes = append(routes, "127.0.0.1:"+itoa(p))
	}
	var servers []*process
	for i := range ports {
		s := &process{role: "nats" + itoa(i), argv: []string{
			bin.turngate, "nats", "--state", filepath.Join(b.dir, "n"+itoa(i)), "--port", itoa(ports[i]), "--trainers", "alpha", "--relaxed-sync",
			"--cluster-name", "n" + itoa(i), "--cluster-port", itoa(clusterPorts[i]), "--routes", strings.Join(routes, ","), "--creds-dir", creds,
		}}
		servers = append(servers, s)
		b.start(s)
		b.servers = append(b.servers, "nats://127.0.0.1:"+itoa(ports[i]))
	}
	t.Cleanup(func() {
		for _, s := range servers {
			b.kill(s)
		}
	})
	for _, s := range servers {
		b.await(s, "workers")
	}
	b.nats, b.port = servers[0], ports[0]
	url := b.url()
	for i := range 3 {
		name := "w" + itoa(i)
		w := &process{role: name, proxy: testenv.NewProxy(t, "127.0.0.1:1"), argv: []string{
			bin.proc, "worker", "-nats", url, "-creds", b.creds("worker"), "-name", name, "-dir", b.dir, "-speed", itoa(speed), "-replicas", "3",
		}}
		b.workers = append(b.workers, w)
		b.start(w)
	}
	t.Cleanup(func() {
		for _, w := range b.workers {
			b.kill(w)
		}
		b.kill(b.trainer)
	})
	for _, w := range b.workers {
		b.await(w, "ready")
	}
	b.trainer = &process{role: "trainer", argv: []string{
		bin.proc, "trainer", "-nats", url, "-creds", b.creds("trainer-alpha"), "-name", "alpha", "-dir", b.dir, "-speed", itoa(speed), "-rollouts", "200",
	}}
	p := openTap(t, b)
	b.start(b.trainer)
	awaitBoxes(t, b, 6)
	for i := range 6 { // each server dies twice: whichever led has died
		s := servers[i%3]
		b.kill(s)
		<-time.After(time.Second)
		b.start(s)
		b.await(s, "workers")
		<-time.After(2 * time.Second)
	}
	b.kill(servers[0])
	b.kill(servers[1]) // no quorum
	<-time.After(2 * ackWait)
	for _, s := range servers[:2] {
		b.start(s)
		b.await(s, "workers")
	}
	r := settle(t, b, p, 120*time.Second)
	t.Logf("%d rollouts, %d take-overs over six dead servers and a lost quorum", r.rollouts, r.takeovers)
}

// TestTimeToReassign kills a third of the workers a minute, in the protocol's own
// time, and does nothing else, and tells how long
// their rollouts wait for another one.
func TestTimeToReassign(t *testing.T) {
	full(t)
	r, faults := runChaos(t, build(t), plan{seed: uint64(setting(t, "CHAOS_SEED", 1)), faults: 40 * time.Second, only: []string{"worker killed"}, pace: 1500 * time.Millisecond, settle: time.Minute})
	for invariant, list := range r.violations {
		t.Errorf("%s: %s", invariant, strings.Join(list[:min(len(list), 5)], "; "))
	}
	t.Logf("%v; the rollouts of a killed worker begin elsewhere after p50 %s, p99 %s (n=%d), with durations %d times as fast",
		faults, percentile(r.reassigned, 0.5), percentile(r.reassigned, 0.99), len(r.reassigned), speed)
}

// TestStoppedWorkersAndRealSandboxes stops, cuts off and drains workers half of
// whose rollouts are in local sandboxes. Whatever step of one is interrupted, no
// worker that goes on gives it up.
func TestStoppedWorkersAndRealSandboxes(t *testing.T) {
	full(t)
	seed := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	r, faults := runChaos(t, build(t), plan{
		seed: seed, faults: 40 * time.Second, settle: 2 * time.Minute, trainer: []string{"-local", "0.5"},
		only: []string{"worker stopped for a moment", "worker stopped beyond its lease", "partition with late bytes", "broker killed", "worker drained"},
	})
	for invariant, list := range r.violations {
		t.Errorf("%s, seed %d: %s", invariant, seed, strings.Join(list[:min(len(list), 5)], "; "))
	}
	t.Logf("seed %d: %d rollouts, %d take-overs, %v", seed, r.rollouts, r.takeovers, faults)
}

// TestNoAttemptIsSpentOnAnOutage has everything but workers die and stand
// still, again and again: no rollout is run twice.
func TestNoAttemptIsSpentOnAnOutage(t *testing.T) {
	full(t)
	seed := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	r, faults := runChaos(t, build(t), plan{
		seed: seed, faults: 40 * time.Second, settle: 2 * time.Minute, trainer: []string{"-harmless"},
		only:   []string{"broker killed", "broker stopped", "trainer killed", "trainer stopped", "latency", "stalled tap"},
		steady: true, speed: 5, // a worker must be back before others give it up, on a busy machine too
	})
	for invariant, list := range r.violations {
		t.Errorf("%s, seed %d: %s", invariant, seed, strings.Join(list[:min(len(list), 5)], "; "))
	}
	t.Logf("seed %d: %d rollouts, %v", seed, r.rollouts, faults)
}
