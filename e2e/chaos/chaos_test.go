package chaos_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
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
	for i := range seeds {
		seed := first + uint64(i)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r, faults := runChaos(t, bin, seed, time.Duration(seconds)*time.Second, nil)
			for invariant, list := range r.violations {
				t.Errorf("%s violated %d times, seed %d: %s", invariant, len(list), seed, strings.Join(list[:min(len(list), 5)], "; "))
			}
			for k, n := range faults {
				total[k] += n
			}
			all.rollouts, all.takeovers, all.overlaps, all.fenced = all.rollouts+r.rollouts, all.takeovers+r.takeovers, all.overlaps+r.overlaps, all.fenced+r.fenced
			all.reassigned = append(all.reassigned, r.reassigned...)
		})
	}
	slices.Sort(all.reassigned)
	t.Logf("%d runs of %d s from seed %d, durations %d times as fast: %d rollouts, %d take-overs, %d overlapping executions, %d attempts that saw their fence; reassigned after a kill: p50 %s, p99 %s (n=%d)",
		seeds, seconds, first, speed, all.rollouts, all.takeovers, all.overlaps, all.fenced, percentile(all.reassigned, 0.5), percentile(all.reassigned, 0.99), len(all.reassigned))
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%4d × %s", total[k], k)
	}
}

// runChaos is one run: load and faults for a while, then everything is mended
// and must come to its end.
func runChaos(t *testing.T, bin binaries, seed uint64, d time.Duration, env []string) (*report, map[string]int) {
	t.Helper()
	t.Logf("seed %d", seed)
	b := newBench(t, bin, 5, env, "-local", "0.05")
	p := openTap(t, b)
	b.start(b.trainer)
	f := &injector{b: b, tap: p, rng: rand.New(rand.NewPCG(seed, 0)), count: map[string]int{}, busy: map[*process]bool{}}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	f.run(ctx)
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	f.mend()
	deadline := time.After(120 * time.Second)
	stuck := false
	for !b.trainer.over() && !stuck {
		select {
		case <-b.trainer.ended:
			if !b.trainer.over() {
				f.mend()
			}
		case <-time.After(time.Second):
			f.mend() // a poison job may have killed one more
		case <-deadline:
			stuck = true
		}
	}
	r := finish(t, b, p, f.kills, stuck)
	return r, f.count
}

// finish ends the workers, looks at what is left (I5), and checks the rest.
func finish(t *testing.T, b *bench, p *tap, kills []kill, stuck bool) *report {
	t.Helper()
	var lefts []string
	for _, w := range b.workers {
		left, ok := b.stop(w)
		if !ok {
			lefts = append(lefts, w.role+" did not end by itself")
		} else if left != (history.Left{}) {
			lefts = append(lefts, fmt.Sprintf("%s left %+v", w.role, left))
		}
	}
	r, err := check(b, p, kills)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lefts {
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
	return r
}
