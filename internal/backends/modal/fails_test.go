package modal_test

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/backends/modal"
	"github.com/turngate/turngate/internal/backends/modal/modaltest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// TestASandboxThatIsGoneIsLost: the error names the reason.
func TestASandboxThatIsGoneIsLost(t *testing.T) {
	s := modaltest.Start(t)
	service(s).EndIsLost(t, backend(t, s.Env(), image()), map[string]hostedtest.Ending{
		"ended at Modal":           {By: func(m hostedtest.Machine) { s.End(m.ID) }, Says: "it was ended at Modal, with the status 137"},
		"the far turngate is gone": hostedtest.Killed(t, "exit status 137"),
	})
}

// TestALostStreamCostsNothing: Modal's client gives it up, and the sandbox goes on with the next
// one.
func TestALostStreamCostsNothing(t *testing.T) {
	s := modaltest.Start(t)
	service(s).GoesOn(t, backend(t, s.Env(), image()), func(m hostedtest.Machine) { s.LoseStreams(m.ID) })
}

// cutter cuts the connections of a server each time that so many bytes have come.
type cutter struct {
	server *modaltest.Server
	data   bytes.Buffer
	every  int
	cuts   int
}

// Write implements io.Writer.
func (c *cutter) Write(p []byte) (int, error) {
	c.data.Write(p)
	if c.data.Len()/c.every > c.cuts {
		c.cuts++
		c.server.Cut()
	}
	return len(p), nil
}

// TestACutCostsNothing: the connections come back, and each byte arrives once in both ways.
func TestACutCostsNothing(t *testing.T) {
	s := modaltest.Start(t)
	sb := sandboxtest.Create(t, backend(t, s.Env(), image()), hostedtest.Spec())
	data := make([]byte, 4<<20)
	_, _ = rand.Read(data) // never fails
	c := &cutter{server: s, every: 1 << 20}
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"cat"}, Stdin: bytes.NewReader(data), Stdout: c})
	harness.Must(t, err)
	if exit, err := p.Wait(); err != nil || exit.Code != 0 || c.cuts < 3 || !bytes.Equal(c.data.Bytes(), data) {
		t.Errorf("after %d cuts %d of %d bytes: %+v, %v", c.cuts, c.data.Len(), len(data), exit, err)
	}
	if all := s.Sandboxes(); len(all) != 1 || len(all[0].Pids) != 1 {
		t.Errorf("the sandboxes %+v", all)
	}
}

// TestAKilledWorkersSandboxEnds: its box ends without the worker, then nothing runs in the
// virtual machine, which Modal ends when it is idle. The next process of the worker need not
// wait for that.
func TestAKilledWorkersSandboxEnds(t *testing.T) {
	testenv.Slow(t)
	s := modaltest.Start(t)
	mark := service(s).KillWorker(t)
	harness.Eventually(t, "no process is left", 5*time.Minute, func() bool { return len(sandboxtest.Processes(mark)) == 0 })
	harness.Eventually(t, "nothing runs there", 5*time.Minute, func() bool { return s.Sandboxes()[0].IsIdle })
	if all := s.Sandboxes(); len(all) != 1 || all[0].Idle != time.Minute {
		t.Fatalf("the sandboxes %+v", all)
	}
	service(s).IsSwept(t, backend(t, s.Env(), image()), mark)
}

// TestSweepReadsAllPages: a page has 20 sandboxes of the test server.
func TestSweepReadsAllPages(t *testing.T) {
	s := modaltest.Start(t)
	b := backend(t, s.Env(), image())
	if n, err := b.Sweep(t.Context(), hostedtest.Owner(), func(schema.ID) bool { return false }); n != 0 || err != nil {
		t.Errorf("without an app: swept %d, %v", n, err)
	}
	harness.Must(t, s.Make("another-app", map[string]string{"turngate_owner": hostedtest.Owner()}))
	service(s).SweepsAllPages(t, b, 45, func(owner, rollout string) error {
		return s.Make(modal.DefaultApp, map[string]string{"turngate_owner": owner, "turngate_rollout": rollout})
	})
}

// TestOnlyOwnSandboxesAreEnded: also if a list has more than was asked for.
func TestOnlyOwnSandboxesAreEnded(t *testing.T) {
	s := modaltest.Start(t)
	b := backend(t, s.Env(), image())
	sandboxtest.Create(t, b, hostedtest.Spec())
	others := map[string]string{"turngate_owner": "another", "turngate_rollout": "alpha-1", "turngate_create": "another"}
	harness.Must(t, s.Make(modal.DefaultApp, others))
	s.Unfilter()
	sp := hostedtest.Spec()
	sp.Attempt = 2
	s.Lose(modaltest.Create, codes.DataLoss)
	s.Refuse(modaltest.List, 1, codes.DataLoss, 0)
	if _, err := b.Create(t.Context(), sp); err == nil || !strings.Contains(err.Error(), "DataLoss") {
		t.Errorf("a lost answer: %v", err)
	}
	if made, left := s.Made(), s.Sandboxes(); len(made) != 3 || len(left) != 2 {
		t.Errorf("%d were made, left: %+v", len(made), left)
	}
	if n, err := b.Sweep(t.Context(), hostedtest.Owner(), func(schema.ID) bool { return false }); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if left := s.Sandboxes(); len(left) != 1 || left[0].Tags["turngate_owner"] != "another" {
		t.Errorf("left: %+v", left)
	}
}

// TestARefusalOfTheRouterIsWaitedFor: the sandbox exists already, and is used.
func TestARefusalOfTheRouterIsWaitedFor(t *testing.T) {
	s := modaltest.Start(t)
	b := backend(t, s.Env(), image())
	s.Refuse(modaltest.Router, 2, codes.ResourceExhausted, time.Millisecond)
	harness.Must(t, b.Check(t.Context()))
	if made := s.Made(); len(made) != 1 {
		t.Errorf("%d sandboxes were made", len(made))
	}
}

// TestARefusalForNowIsWaitedFor: Modal tells how long, and all requests of a worker wait.
func TestARefusalForNowIsWaitedFor(t *testing.T) {
	s := modaltest.Start(t)
	service(s).WaitsWhenRefused(t, backend(t, s.Env(), image()), func(times int, after time.Duration) {
		s.Refuse(modaltest.Create, times, codes.ResourceExhausted, after)
	}, "ResourceExhausted")
}

// TestAnErrorOfModalIsNoWait: only a refusal for now is.
func TestAnErrorOfModalIsNoWait(t *testing.T) {
	s := modaltest.Start(t)
	s.Refuse(modaltest.Create, 1, codes.FailedPrecondition, 0)
	if _, err := backend(t, s.Env(), image()).Create(t.Context(), hostedtest.Spec()); err == nil || !strings.Contains(err.Error(), "FailedPrecondition: refused for a test") {
		t.Errorf("got %v", err)
	}
}

// TestSandboxesAtOnceAreBounded: the next one waits until one is closed.
func TestSandboxesAtOnceAreBounded(t *testing.T) {
	s := modaltest.Start(t)
	m := image()
	m.Sandboxes = 1
	service(s).OneAtOnce(t, backend(t, s.Env(), m))
}
