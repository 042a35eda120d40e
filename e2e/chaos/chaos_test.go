package chaos_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// setting reads a number of the environment.
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
// and restarted, and checks the invariants afterwards. CHAOS_SEEDS says how
// many runs, CHAOS_SECONDS how long each injects faults, CHAOS_SEED which seed
// is the first.
func TestRandomFaults(t *testing.T) {
	bin := build(t)
	seeds, seconds := setting(t, "CHAOS_SEEDS", 1), setting(t, "CHAOS_SECONDS", 20)
	first := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	total := map[string]int{}
	all := &report{}
	var mu sync.Mutex
	one := func(t *testing.T, seed uint64) {
		t.Parallel()
		r, faults := runChaos(t, bin, plan{seed: seed, faults: time.Duration(seconds) * time.Second, settle: 120 * time.Second})
		for invariant, list := range r.violations {
			t.Errorf("%s violated %d times, seed %d: %s", invariant, len(list), seed, strings.Join(list[:min(len(list), 5)], "; "))
		}
		mu.Lock()
		defer mu.Unlock()
		for k, n := range faults {
			total[k] += n
		}
		all.rollouts, all.takeovers, all.overlaps, all.fenced = all.rollouts+r.rollouts, all.takeovers+r.takeovers, all.overlaps+r.overlaps, all.fenced+r.fenced
		all.reassigned = append(all.reassigned, r.reassigned...)
	}
	t.Run("seeds", func(t *testing.T) { // it returns when all have ended
		for i := range seeds {
			t.Run(fmt.Sprint(first+uint64(i)), func(t *testing.T) { one(t, first+uint64(i)) })
		}
	})
	slices.Sort(all.reassigned)
	t.Logf("%d runs of %d s from seed %d, durations %d times as fast: %d rollouts, %d take-overs, %d overlapping executions, %d attempts that saw their fence; reassigned after a kill: p50 %s, p99 %s (n=%d)",
		seeds, seconds, first, speed, all.rollouts, all.takeovers, all.overlaps, all.fenced, percentile(all.reassigned, 0.5), percentile(all.reassigned, 0.99), len(all.reassigned))
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%4d × %s", total[k], k)
	}
}

// plan is what a run does.
type plan struct {
	seed    uint64
	faults  time.Duration // how long they are injected
	more    []string      // kinds that come more often
	only    []string      // the kinds there are; empty: all
	pace    time.Duration // more time between two
	settle  time.Duration // how long it may take to come to the end afterwards
	env     []string      // of workers and trainer
	trainer []string      // more flags
	steady  bool          // nothing is done to workers
	speed   int           // how many times faster than the protocol's own durations; 0: as in the other tests
}

// runChaos is one run: load and faults for a while, then everything is mended
// and must come to its end.
func runChaos(t *testing.T, bin binaries, pl plan) (*report, map[string]int) {
	t.Helper()
	t.Logf("seed %d", pl.seed)
	b := emptyBench(t, bin)
	b.speed, b.steady = cmp.Or(pl.speed, b.speed), pl.steady
	b.begin(5, pl.env, append([]string{"-local", "0.05"}, pl.trainer...))
	p := openTap(t, b)
	b.start(b.trainer)
	f := &injector{b: b, tap: p, rng: rand.New(rand.NewPCG(pl.seed, 0)), count: map[string]int{}, busy: map[*process]bool{}, more: pl.more, only: pl.only, pace: pl.pace}
	ctx, cancel := context.WithTimeout(t.Context(), pl.faults)
	defer cancel()
	f.run(ctx)
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	f.mend()
	deadline := time.After(pl.settle)
	stuck := false
	for !b.trainer.over() && !stuck {
		select {
		case <-b.trainer.ended:
			f.mend()
		case <-time.After(time.Second):
			f.mend() // a poison job may have killed one more
		case <-deadline:
			stuck = true
		}
	}
	return f.finish(t, stuck), f.count
}

// finish ends the workers, looks at what is left (I5), and checks the rest.
func (f *injector) finish(t *testing.T, stuck bool) *report {
	t.Helper()
	b, p := f.b, f.tap
	for range 200 { // what nobody waits for, duplicates and poison, is settled too
		if waiting, _, err := p.queued(); err == nil && waiting == 0 {
			break
		}
		wait(t.Context(), 100*time.Millisecond)
	}
	for _, w := range b.workers {
		if !w.alive() { // killed on purpose, or by a poison job
			continue
		}
		left, ok := b.stop(w)
		f.leaves(w, left, ok)
	}
	r, err := check(b, p, f.kills)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range f.lefts {
		r.violate("I5", "%s", l)
	}
	if stuck {
		r.violate("I1", "the trainer still waits for results")
	}
	waiting, out, err := p.queued()
	if err != nil {
		t.Fatal(err)
	}
	if waiting != 0 || out != 0 {
		r.violate("I5", "%d requests are on the queue, %d with a worker", waiting, out)
	}
	if leases, err := p.leases(); err != nil {
		t.Fatal(err)
	} else if len(leases) > 0 {
		r.violate("I5", "leases are left: %v", leases)
	}
	if boxes, err := filepath.Glob(filepath.Join(b.dir, "state-*", "*", "rollout-*")); err != nil || len(boxes) > 0 {
		r.violate("I5", "folders of sandboxes are left: %v %v", boxes, err)
	}
	for _, list := range r.violations {
		b.violated = append(b.violated, list[:min(len(list), 3)]...)
	}
	return r
}
