package e2b_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/e2b"
	"github.com/turngate/turngate/internal/backends/e2b/e2btest"
	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

// TestASandboxThatIsGoneIsLost: the error says so, for each cause of the end.
func TestASandboxThatIsGoneIsLost(t *testing.T) {
	s := e2btest.Start(t)
	service(s).EndIsLost(t, backend(t, settings(s)), map[string]hostedtest.Ending{
		"ended by E2B":             {By: func(m hostedtest.Machine) { s.End(m.ID) }, Says: "E2B has ended it"},
		"the far turngate is gone": hostedtest.Killed(t, "signal: killed"),
	})
}

// TestABrokenStreamCostsNothing: the sandbox goes on with the next one.
func TestABrokenStreamCostsNothing(t *testing.T) {
	testenv.Slow(t)
	s := e2btest.Start(t)
	service(s).GoesOn(t, backend(t, settings(s)), func(m hostedtest.Machine) { s.Cut(m.ID) })
}

// TestAKilledWorkersSandboxIsSwept: by the next process of the same worker. Its time at E2B
// bounds it too, since no process extends it.
func TestAKilledWorkersSandboxIsSwept(t *testing.T) {
	s := e2btest.Start(t)
	mark := service(s).KillWorker(t)
	all := s.Sandboxes()
	if len(all) != 1 || time.Until(all[0].Ends) > 5*time.Minute || len(sandboxtest.Processes(mark)) == 0 {
		t.Fatalf("the sandboxes %+v", all)
	}
	service(s).IsSwept(t, backend(t, settings(s)), mark)
}

// TestSweepReadsAllPages: E2B lists 100 sandboxes at once.
func TestSweepReadsAllPages(t *testing.T) {
	s := e2btest.Start(t)
	service(s).SweepsAllPages(t, backend(t, settings(s)), 105, func(owner, rollout string) error {
		return s.Make(map[string]string{"turngate_owner": owner, "turngate_rollout": rollout})
	})
}

// TestARefusalForNowIsWaitedFor: E2B tells how long, and all requests of a worker wait.
func TestARefusalForNowIsWaitedFor(t *testing.T) {
	s := e2btest.Start(t)
	service(s).WaitsWhenRefused(t, backend(t, settings(s)), func(times int, after time.Duration) {
		s.Refuse(times, 429, strconv.Itoa(int(after.Seconds())))
	}, "429")
}

// TestAnErrorOfE2BIsNoWait: only 429 is.
func TestAnErrorOfE2BIsNoWait(t *testing.T) {
	s := e2btest.Start(t)
	s.Refuse(1, 500, "")
	if _, err := backend(t, settings(s)).Create(t.Context(), hostedtest.Spec()); err == nil || !strings.Contains(err.Error(), "500: refused for a test") {
		t.Errorf("got %v", err)
	}
}

// TestSandboxesAtOnceAreBounded: the next one waits until one is closed.
func TestSandboxesAtOnceAreBounded(t *testing.T) {
	s := e2btest.Start(t)
	e := settings(s)
	e.Sandboxes = 1
	service(s).OneAtOnce(t, backend(t, e))
}

// TestCreationsAreSpread: no more than so many in a minute.
func TestCreationsAreSpread(t *testing.T) {
	s := e2btest.Start(t)
	e := settings(s)
	e.PerMinute = 60
	b := backend(t, e)
	before := time.Now()
	for i := range 2 {
		sp := hostedtest.Spec()
		sp.Attempt = i + 1
		harness.Must(t, sandboxtest.Create(t, b, sp).Close(t.Context()))
	}
	if waited := s.Made()[1].Sub(before); waited < time.Second {
		t.Errorf("the second after %s", waited)
	}
}

// TestTheTimeAtE2BIsMadeLonger: a sandbox that lives has always a part of its lease left.
func TestTheTimeAtE2BIsMadeLonger(t *testing.T) {
	testenv.Slow(t)
	s := e2btest.Start(t)
	sp := hostedtest.Spec()
	sp.Lost = time.Minute
	sandboxtest.Create(t, backend(t, settings(s)), sp)
	first := s.Sandboxes()[0].Ends
	harness.Eventually(t, "a later end", 5*time.Minute, func() bool { return s.Sandboxes()[0].Ends.After(first.Add(10 * time.Second)) })
}

// TestRefusedRenewalsAreNamed: by a line when they begin, and by the error of the sandbox that
// ends for want of one.
func TestRefusedRenewalsAreNamed(t *testing.T) {
	testenv.Slow(t)
	s := e2btest.Start(t)
	exe, err := os.Executable()
	harness.Must(t, err)
	lines := make(chan string, 100)
	b, err := e2b.Kind().New(sandboxes.Host{Helper: exe, E2B: settings(s), Warn: func(line string) { lines <- line }})
	harness.Must(t, err)
	s.RefuseRenewals(100)
	sp := hostedtest.Spec()
	sp.Lost = time.Minute
	sb := sandboxtest.Create(t, b, sp)
	p := sandboxtest.Up(t, sb, sandboxtest.Mark(t))
	if line := <-lines; !strings.Contains(line, "the renewal of its lease failed, 1 times in a row") || !strings.Contains(line, "E2B answers 429") {
		t.Errorf("got %q", line)
	}
	s.End(s.Sandboxes()[0].ID)
	if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) || !strings.Contains(err.Error(), "its lease was not renewed, 1 times in a row: E2B answers 429: refused for a test: E2B has ended it") {
		t.Errorf("the process ends with %v", err)
	}
	harness.Must(t, sb.Close(t.Context()))
}
