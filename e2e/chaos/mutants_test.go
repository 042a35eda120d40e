package chaos_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/crash"
)

// TestTheCheckerCanFail breaks one rule at a time in every process, and looks
// whether the same run that passes otherwise sees the invariant violated.
func TestTheCheckerCanFail(t *testing.T) {
	full(t)
	bin := build(t)
	seed := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	helps := map[string][]string{
		"I1": {"worker stopped beyond its lease", "partition with late bytes"},
		"I3": {"trainer killed"},
		"I5": {"worker drained"},
		"I6": {"worker stopped beyond its lease", "partition with late bytes"},
	}
	for _, invariant := range slices.Sorted(maps.Keys(crash.Mutants())) {
		t.Run(invariant+", "+crash.Mutants()[invariant], func(t *testing.T) {
			t.Parallel()
			for try := range 4 { // a run may be too kind to a mutant
				r, _ := runChaos(t, bin, plan{
					seed: seed + uint64(try), faults: 10 * time.Second, more: helps[invariant], settle: 20 * time.Second,
					env: []string{crash.EnvBreak + "=" + invariant},
				})
				if list := r.violations[invariant]; len(list) > 0 {
					t.Logf("caught: %s", strings.Join(list[:min(len(list), 2)], "; "))
					return
				}
			}
			t.Errorf("%s was broken and nothing was seen", invariant)
		})
	}
}
