package chaos_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestTheCheckerCanFail breaks the rule behind one invariant at a time in every
// process. A script leads the run to the place where the rule counts, without
// chance, and the same checks as everywhere must find the invariant violated.
// Without the mutant the script passes.
func TestTheCheckerCanFail(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	scripts := map[string]func(*testing.T, binaries) *report{
		"I1": fenced, "I2": quiet, "I3": trainerDies, "I4": quiet, "I5": quiet, "I6": fenced,
	}
	for _, m := range mutants(t) {
		t.Run(m.invariant, func(t *testing.T) {
			t.Parallel()
			r := scripts[m.invariant](t, buildMutant(t, m.patch))
			list := r.violations[m.invariant]
			if len(list) == 0 {
				t.Fatalf("nothing was seen. The mutant: %s Other violations: %v", m.rule, r.violations)
			}
			t.Logf("%s Caught: %s", m.rule, strings.Join(list[:min(len(list), 2)], "; "))
		})
	}
	for name, script := range map[string]func(*testing.T, binaries) *report{"fence": fenced, "trainer dies": trainerDies} {
		t.Run("no mutant, "+name, func(t *testing.T) {
			t.Parallel()
			if r := script(t, build(t)); len(r.violations) > 0 {
				t.Errorf("%v", r.violations)
			}
		})
	}
}

// TestTheCheckerReadsCommittedGenerations: a result may commit only generations that its
// trainer made for its attempt and call.
func TestTheCheckerReadsCommittedGenerations(t *testing.T) {
	key := func(id schema.ID, attempt, call int) schema.Key {
		return schema.Key{Rollout: id, Attempt: attempt, Call: call}
	}
	made := map[string]schema.Key{"first": key("alpha-1", 1, 1), "again": key("alpha-1", 2, 1), "next": key("alpha-1", 2, 2), "other": key("alpha-2", 2, 2)}
	for committed, want := range map[string]int{
		"1/again 2/next": 0, "": 0, "1/first": 1, "1/next": 1, "2/other": 1, "2/unknown": 1, "1/again 1/again": 1, "again": 1,
	} {
		r := &report{}
		r.checkCommitted([]history.Trained{{Op: "result", ID: "alpha-1", Attempt: 2, Generations: strings.Fields(committed)}}, made)
		if got := r.violations["I3"]; len(got) != want {
			t.Errorf("%q: got %q", committed, got)
		}
	}
}

// quiet runs rollouts without a fault.
func quiet(t *testing.T, bin binaries) *report {
	t.Helper()
	b := newBench(t, bin, 1, nil, "-rollouts", "4", "-harmless")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 4, time.Minute)
	return observe(t, b, p)
}

// observe starts the trainer and lets every rollout end.
func observe(t *testing.T, b *bench, p *tap) *report {
	t.Helper()
	if !b.trainers[0].alive() {
		b.start(b.trainers[0])
	}
	f := newInjector(b, p, 0)
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	return f.finish(t, !f.allEnded(time.Minute))
}

// fenced suspends a worker beyond its lease, waits until another has taken its
// rollouts over, and lets it go on until it has learned so and must have acted.
// The agents ask without end, so that a worker with a broken fence has something
// to publish.
func fenced(t *testing.T, bin binaries) *report {
	t.Helper()
	b := newBench(t, bin, 1, nil, "-rollouts", "4", "-harmless", "-agent", "stubborn")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 4, time.Minute)
	first := b.workers[0]
	b.signal(first, syscall.SIGSTOP)
	b.await(b.add(), "ready")
	awaitAgents(t, b, 8, time.Minute) // the second executions have begun
	b.signal(first, syscall.SIGCONT)
	p.until(t, "the first worker learns of the second attempts", time.Minute, func() bool { return len(p.fences) >= 4 })
	p.until(t, "the first worker has acted, and has time to say more", time.Minute, func() bool {
		for r, f := range p.fences {
			if p.renewals[p.owner[r]] < f.renewals+2*fenceRenewals {
				return false
			}
		}
		return true
	})
	return observe(t, b, p)
}

// trainerDies kills the trainer in the middle of answers that stream.
func trainerDies(t *testing.T, bin binaries) *report {
	t.Helper()
	b := newBench(t, bin, 1, []string{"TURNGATE_CRASH=trainer.delta"}, "-rollouts", "4", "-harmless")
	p := openTap(t, b)
	trainer := b.trainers[0]
	b.start(trainer)
	<-trainer.ended
	trainer.env = nil
	return observe(t, b, p)
}
