package chaos_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
)

// setting reads a number from an environment variable.
func setting(t testing.TB, name string, standard int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s: %q is not valid: want a number from 1 on", name, text)
	}
	return n
}

// TestRandomFaults runs rollouts while processes are killed, stopped, cut off
// and restarted, and checks the invariants afterwards. CHAOS_SEEDS is the number
// of runs, CHAOS_SECONDS the duration of faults in each, CHAOS_SEED the first
// seed.
func TestRandomFaults(t *testing.T) {
	testenv.Slow(t)
	bin := build(t)
	seeds, seconds := setting(t, "CHAOS_SEEDS", 1), setting(t, "CHAOS_SECONDS", 20)
	first := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	total := map[string]int{}
	all := &report{}
	var mu sync.Mutex
	one := func(t *testing.T, seed uint64) {
		t.Parallel()
		r, faults := runChaos(t, bin, plan{
			seed: seed, faults: time.Duration(seconds) * time.Second, after: 120 * time.Second,
			trainers: []string{"alpha", "beta"}, hostile: true, synced: seed%3 == 0,
		})
		if faults[attacks] == 0 {
			t.Errorf("seed %d: trainer %s has sent nothing", seed, hostileName)
		}
		for invariant, list := range r.violations {
			t.Errorf("%s violated %d times, seed %d: %s", invariant, len(list), seed, strings.Join(list[:min(len(list), 5)], "; "))
		}
		mu.Lock()
		defer mu.Unlock()
		for k, n := range faults {
			total[k] += n
		}
		all.rollouts, all.takeovers, all.overlaps, all.fenced = all.rollouts+r.rollouts, all.takeovers+r.takeovers, all.overlaps+r.overlaps, all.fenced+r.fenced
		all.dead, all.executions, all.messages = all.dead+r.dead, all.executions+r.executions, all.messages+r.messages
		all.reassigned = append(all.reassigned, r.reassigned...)
	}
	t.Run("seeds", func(t *testing.T) { // it returns when all have ended
		for i := range seeds {
			t.Run(fmt.Sprint(first+uint64(i)), func(t *testing.T) { one(t, first+uint64(i)) })
		}
	})
	slices.Sort(all.reassigned)
	t.Logf("%d runs of %d s from seed %d, durations %d times as fast: %d rollouts, %d executions, %d take-overs, %d overlapping executions, %d attempts that saw their fence, %d rollouts without tries left, %d messages heard; reassigned after a kill: p50 %s, p99 %s (n=%d)",
		seeds, seconds, first, speed, all.rollouts, all.executions, all.takeovers, all.overlaps, all.fenced, all.dead, all.messages, percentile(all.reassigned, 0.5), percentile(all.reassigned, 0.99), len(all.reassigned))
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%4d × %s", total[k], k)
	}
}

// TestTrainersInPythonUnderFaults runs two trainers in Python beside one in Go, and
// kills and stops them most of all.
func TestTrainersInPythonUnderFaults(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	python := testenv.Python(t, "nats")
	r, faults := runChaos(t, build(t), plan{
		seed: uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix()))), faults: time.Duration(setting(t, "CHAOS_SECONDS", 30)) * time.Second, after: 180 * time.Second,
		trainers: []string{"alpha", "beta", "gamma"}, python: python, more: []string{"trainer killed", "trainer stopped"},
	})
	for invariant, list := range r.violations {
		t.Errorf("%s violated %d times: %s", invariant, len(list), strings.Join(list[:min(len(list), 5)], "; "))
	}
	if r.trained["beta"] == 0 || r.trained["gamma"] == 0 || faults["trainer killed"] == 0 {
		t.Errorf("results of each trainer: %v; faults: %v", r.trained, faults)
	}
	t.Logf("%d rollouts, results of each trainer %v, %d executions, %d take-overs; faults %v", r.rollouts, r.trained, r.executions, r.takeovers, faults)
}

// plan configures a run.
type plan struct {
	seed     uint64
	faults   time.Duration // duration of the faults
	more     []string      // kinds of faults to inject more often
	only     []string      // kinds of faults to inject; empty: all
	pace     time.Duration // additional time between two faults
	after    time.Duration // longest time until the end after the faults
	env      []string      // of workers and trainers
	trainer  []string      // additional flags
	trainers []string      // names; empty: alpha
	python   string        // interpreter of all trainers but the first; empty: they are chaosproc
	hostile  bool          // one more trainer attacks
	synced   bool          // default durability
	steady   bool          // no faults of workers
	speed    int           // divides the protocol's default durations; 0: as in the other tests
}

// runChaos does one run: load and faults for a while, then all faults are mended
// and every rollout must end.
func runChaos(t *testing.T, bin binaries, pl plan) (*report, map[string]int) {
	t.Helper()
	t.Logf("seed %d", pl.seed)
	b := emptyBench(t, bin)
	b.speed, b.steady, b.synced = cmp.Or(pl.speed, b.speed), pl.steady, pl.synced
	if len(pl.trainers) > 0 {
		b.trainers = nil
		for i, name := range pl.trainers {
			tr := &process{name: name}
			if i > 0 {
				tr.python = pl.python
			}
			b.trainers = append(b.trainers, tr)
		}
	}
	if pl.hostile {
		b.guests = []string{hostileName}
	}
	b.begin(5, pl.env, append([]string{"-local", "0.05"}, pl.trainer...))
	p := openTap(t, b)
	for _, tr := range b.trainers {
		b.start(tr)
	}
	f := newInjector(b, p, pl.seed)
	f.more, f.only, f.pace = pl.more, pl.only, pl.pace
	ctx, cancel := context.WithTimeout(t.Context(), pl.faults)
	defer cancel()
	var attacker *hostile
	if pl.hostile {
		attacker = attack(t, ctx, b, pl.seed)
	}
	f.run(ctx)
	if attacker != nil {
		attacker.done.Wait()
		f.count[attacks] = attacker.count
	}
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	f.mend()
	r := f.finish(t, !f.allEnded(pl.after))
	return r, f.count
}

// finish ends the workers, checks that nothing is left (I5), and checks the other
// invariants.
func (f *injector) finish(t *testing.T, stuck bool) *report {
	t.Helper()
	b, p := f.b, f.tap
	trainers := slices.Clone(b.guests)
	for _, tr := range b.trainers {
		trainers = append(trainers, tr.name)
	}
	for range 200 { // duplicates and poison jobs must be settled too, though no trainer waits for them
		if waiting, out, err := p.queued(trainers...); err == nil && waiting == 0 && out == 0 {
			break
		}
		wait(t.Context(), 100*time.Millisecond)
	}
	for _, w := range b.workers {
		if w.alive() { // otherwise killed on purpose, or by a poison job
			f.leaves(b.stop(w))
		}
	}
	r, err := check(b, p, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range f.lefts {
		r.violate("I5", "%s", l)
	}
	for _, err := range f.problems {
		t.Errorf("a fault could not be injected: %v", err)
	}
	if stuck {
		r.violate("I1", "a trainer still waits for results")
	}
	waiting, out, err := p.queued(trainers...)
	if err != nil {
		t.Fatal(err)
	}
	if waiting != 0 || out != 0 {
		r.violate("I5", "%d requests are on the queue, %d with a worker: %v", waiting, out, p.left(trainers...))
	}
	if leases, err := p.leases(); err != nil {
		t.Fatal(err)
	} else if len(leases) > 0 {
		r.violate("I5", "leases are left: %v", leases)
	}
	if boxes, err := filepath.Glob(filepath.Join(b.dir, "state-*", "*", "rollout-*")); err != nil || len(boxes) > 0 {
		r.violate("I5", "folders of sandboxes are left: %v %v", boxes, err)
	}
	f.checkStrays(t, r)
	for _, list := range r.violations {
		b.violated = append(b.violated, list[:min(len(list), 3)]...)
	}
	return r
}

// checkStrays checks that no process and no agent of the run is left.
func (f *injector) checkStrays(t *testing.T, r *report) {
	t.Helper()
	var strays []string
	for range 100 { // a box notices the end of its worker after a moment
		var err error
		if strays, err = f.b.strays(); err != nil {
			t.Fatal(err)
		}
		if len(strays) == 0 {
			break
		}
		wait(t.Context(), 100*time.Millisecond)
	}
	if len(strays) > 0 {
		r.violate("I5", "processes are left: %v", strays)
	}
	for _, a := range f.b.census.all() {
		if a.end.IsZero() {
			r.violate("I5", "an agent of %s in %s has not ended", a.rollout, a.box)
		}
	}
}
