package prime_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/backends/prime/primetest"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

// TestASandboxThatIsGoneIsLost: the error names the end.
func TestASandboxThatIsGoneIsLost(t *testing.T) {
	s := primetest.Start(t)
	service(s).EndIsLost(t, backend(t, settings(s)), map[string]hostedtest.Ending{
		"removed":                  {By: func(m hostedtest.Machine) { s.End(m.ID, "") }, Says: "it is not known any more"},
		"ended by Prime":           {By: func(m hostedtest.Machine) { s.End(m.ID, "its time is over") }, Says: "ended by Prime: TERMINATED, its time is over"},
		"the far turngate is gone": hostedtest.Killed(t, "signal: killed"),
	})
}

// TestABrokenStreamCostsNothing: the sandbox goes on with the next one.
func TestABrokenStreamCostsNothing(t *testing.T) {
	testenv.Slow(t)
	s := primetest.Start(t)
	service(s).GoesOn(t, backend(t, settings(s)), func(m hostedtest.Machine) { s.Cut(m.ID) })
}

// TestAKilledWorkersSandboxIsSwept: by the next process of the same worker. Prime ends it
// too, when nothing has used it for a while.
func TestAKilledWorkersSandboxIsSwept(t *testing.T) {
	s := primetest.Start(t)
	mark := service(s).KillWorker(t)
	all := s.Sandboxes()
	if len(all) != 1 || all[0].Idle != 5 || len(sandboxtest.Processes(mark)) == 0 {
		t.Fatalf("the sandboxes %+v", all)
	}
	service(s).IsSwept(t, backend(t, settings(s)), mark)
}

// TestSweepReadsAllPages: Prime lists 50 sandboxes at once.
func TestSweepReadsAllPages(t *testing.T) {
	s := primetest.Start(t)
	service(s).SweepsAllPages(t, backend(t, settings(s)), 55, func(owner, rollout string) error {
		return s.Make("turngate-owner-"+owner, "turngate-rollout-"+rollout)
	})
}

// TestARefusalForNowIsWaitedFor: Prime tells how long.
func TestARefusalForNowIsWaitedFor(t *testing.T) {
	s := primetest.Start(t)
	service(s).WaitsWhenRefused(t, backend(t, settings(s)), func(times int, after time.Duration) {
		s.Refuse(times, 429, strconv.Itoa(int(after.Seconds())))
	}, "429")
}

// TestAnErrorOfPrimeIsNoWait: only 429 is.
func TestAnErrorOfPrimeIsNoWait(t *testing.T) {
	s := primetest.Start(t)
	s.Refuse(1, 500, "")
	if _, err := backend(t, settings(s)).Create(t.Context(), hostedtest.Spec()); err == nil || !strings.Contains(err.Error(), "500: refused for a test") {
		t.Errorf("got %v", err)
	}
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestASandboxWithoutAnAnswerIsRemoved: Prime may have made it although the answer got lost.
func TestASandboxWithoutAnAnswerIsRemoved(t *testing.T) {
	s := primetest.Start(t)
	s.LoseMade()
	if _, err := backend(t, settings(s)).Create(t.Context(), hostedtest.Spec()); err == nil || !strings.Contains(err.Error(), "502: lost for a test") {
		t.Errorf("got %v", err)
	}
	if made, left := s.Made(), s.Sandboxes(); len(made) != 1 || len(left) > 0 {
		t.Errorf("made %d, left: %+v", len(made), left)
	}
}

// TestSandboxesAtOnceAreBounded: the next one waits until one is closed.
func TestSandboxesAtOnceAreBounded(t *testing.T) {
	s := primetest.Start(t)
	p := settings(s)
	p.Sandboxes = 1
	service(s).OneAtOnce(t, backend(t, p))
}
