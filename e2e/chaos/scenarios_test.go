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

// conclude waits until every rollout of a bench has ended and checks it.
func conclude(t *testing.T, b *bench, p *tap, limit time.Duration) *report {
	t.Helper()
	f := newInjector(b, p, 0)
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	r := f.finish(t, !f.allEnded(limit))
	for invariant, list := range r.violations {
		t.Errorf("%s: %s", invariant, strings.Join(list[:min(len(list), 5)], "; "))
	}
	return r
}

// away runs eight rollouts while a process is away for a while: it is killed and
// restarted, or suspended with its connections open. No rollout may run twice.
func away(t *testing.T, workers int, calls string, who func(*bench) *process, d, limit time.Duration) {
	t.Helper()
	testenv.Slow(t)
	t.Parallel()
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
			b.start(b.trainers[0])
			awaitAgents(t, b, 8, time.Minute)
			back := leave(b, who(b))
			<-time.After(d)
			back()
			if r := conclude(t, b, p, limit); r.executions != 8 || r.takeovers != 0 {
				t.Errorf("%d executions of 8 rollouts, %d take-overs", r.executions, r.takeovers)
			}
		})
	}
}

// A server that is away for five times the ack wait costs no live rollout its
// attempt: the workers pause and go on.
func TestTheBrokerIsDownForLong(t *testing.T) {
	away(t, 3, "12", func(b *bench) *process { return b.nats }, 5*ackWait, 90*time.Second)
}

// A trainer that is away for so long that workers notice its silence costs only
// time.
func TestTheTrainerIsAway(t *testing.T) {
	away(t, 2, "6", func(b *bench) *process { return b.trainers[0] }, 18*time.Second, 60*time.Second)
}

// After a server comes back with an empty store, the trainer submits its open
// rollouts again.
func TestTheStoreIsWiped(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t, build(t), 3, nil, "-rollouts", "40", "-calls", "4")
	b.start(b.trainers[0])
	awaitAgents(t, b, 12, time.Minute)
	b.kill(b.nats)
	if err := os.RemoveAll(filepath.Join(b.dir, "nats", "nats")); err != nil {
		t.Fatal(err)
	}
	b.start(b.nats)
	b.write("enough")
	select {
	case <-b.trainers[0].ended:
	case <-time.After(100 * time.Second):
		t.Fatal("the trainer still waits for results")
	}
	// Rollouts with a result from before are not run again: only the rollouts in
	// the new store must keep the invariants.
	trained, err := lines[history.Trained](filepath.Join(b.dir, "trainer-alpha.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	submitted, results := map[string]bool{}, map[string]int{}
	for _, l := range trained {
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
		if left := b.stop(w); len(left) > 0 {
			t.Error(left)
		}
	}
}

// A full disk stops all rollouts and loses nothing.
func TestTheDiskIsFull(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := emptyBench(t, build(t))
	store := filepath.Join(b.dir, "nats")
	if err := os.Mkdir(store, 0o700); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256m", "none", store).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a small disk needs the right to mount: %v: %s", err, said)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", store).Run() })
	b.begin(3, nil, []string{"-rollouts", "60"})
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 6, time.Minute)
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
	b.kill(b.nats) // a supervisor restarts a server after failed writes
	b.start(b.nats)
	conclude(t, b, p, 120*time.Second)
}

// With the protocol's own durations, a killed worker's rollouts run elsewhere
// within 90 s.
func TestTheRealDurations(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := emptyBench(t, build(t))
	b.speed = 1
	b.begin(1, nil, []string{"-rollouts", "4", "-calls", "30"})
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 4, time.Minute)
	b.await(b.add(), "ready")
	b.kill(b.workers[0])
	start := time.Now()
	awaitAgents(t, b, 8, 100*time.Second)
	took := time.Since(start)
	t.Logf("all four rollouts of a killed worker run elsewhere after %s", took.Round(100*time.Millisecond))
	if took > 90*time.Second {
		t.Errorf("it took %s", took)
	}
	r := conclude(t, b, p, 120*time.Second)
	if r.takeovers != 4 {
		t.Errorf("%d take-overs", r.takeovers)
	}
}

// TestTimeToReassign kills a third of the workers per minute, in terms of the
// protocol's default durations, without other faults. It logs how long their
// rollouts wait for another worker.
func TestTimeToReassign(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	r, faults := runChaos(t, build(t), plan{seed: uint64(setting(t, "CHAOS_SEED", 1)), faults: 40 * time.Second, only: []string{"worker killed"}, pace: 1500 * time.Millisecond, after: time.Minute})
	for invariant, list := range r.violations {
		t.Errorf("%s: %s", invariant, strings.Join(list[:min(len(list), 5)], "; "))
	}
	t.Logf("%v; the rollouts of a killed worker begin elsewhere after p50 %s, p99 %s (n=%d), with durations %d times as fast",
		faults, percentile(r.reassigned, 0.5), percentile(r.reassigned, 0.99), len(r.reassigned), speed)
}

// TestStoppedWorkersAndRealSandboxes suspends, cuts off and drains workers with
// half of their rollouts in local sandboxes. An interruption of any step of a
// sandbox must not make a worker that goes on give the rollout up.
func TestStoppedWorkersAndRealSandboxes(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	seed := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	r, faults := runChaos(t, build(t), plan{
		seed: seed, faults: 40 * time.Second, after: 2 * time.Minute, trainer: []string{"-local", "0.5"},
		only: []string{"worker stopped for a moment", "worker stopped beyond its lease", "partition with late bytes", "broker killed", "worker drained", "clock stepped"},
	})
	for invariant, list := range r.violations {
		t.Errorf("%s, seed %d: %s", invariant, seed, strings.Join(list[:min(len(list), 5)], "; "))
	}
	t.Logf("seed %d: %d rollouts, %d take-overs, %v", seed, r.rollouts, r.takeovers, faults)
}

// TestNoAttemptIsSpentOnAnOutage kills and suspends all processes except workers,
// again and again: no rollout may run twice.
func TestNoAttemptIsSpentOnAnOutage(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	seed := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	r, faults := runChaos(t, build(t), plan{
		seed: seed, faults: 40 * time.Second, after: 2 * time.Minute, trainer: []string{"-harmless"},
		only:   []string{"broker killed", "broker stopped", "trainer killed", "trainer stopped", "latency", "connections cut", "clock stepped", "stalled tap"},
		steady: true, speed: 5, // a worker must be back before others give it up, on a busy machine too
	})
	for invariant, list := range r.violations {
		t.Errorf("%s, seed %d: %s", invariant, seed, strings.Join(list[:min(len(list), 5)], "; "))
	}
	t.Logf("seed %d: %d rollouts, %v", seed, r.rollouts, faults)
}
