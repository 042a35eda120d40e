package worker_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// hanging is a backend with a service that does not answer a sweep.
type hanging struct {
	*dummy.Backend
	mu    sync.Mutex
	keeps map[string]func(schema.ID) bool // by owner
}

func (b *hanging) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	b.mu.Lock()
	b.keeps[owner] = keep
	b.mu.Unlock()
	<-ctx.Done()
	return 0, context.Cause(ctx)
}

// keep returns the function of the sweep for an owner; nil: there was none.
func (b *hanging) keep(owner string) func(schema.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keeps[owner]
}

// newHanging returns a bench whose backend does not end a sweep.
func newHanging(t *testing.T, agent dummy.Program, p *handover.Process) (*bench, *hanging, *harness.Buffer) {
	t.Helper()
	backend, log := &hanging{keeps: map[string]func(schema.ID) bool{}}, &harness.Buffer{}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": agent}), func(c *worker.Config) {
		backend.Backend = c.Backends[0].(*dummy.Backend)
		c.Backends, c.Process, c.SweepWait, c.Log = []sandboxes.Backend{backend}, p, 10*time.Millisecond, zerolog.New(log)
	})
	return b, backend, log
}

// TestASweepThatHangsStopsNoRollouts: the worker begins, and the sweep goes on. It removes
// nothing of the rollouts that run by then.
func TestASweepThatHangsStopsNoRollouts(t *testing.T) {
	t.Parallel()
	var backend *hanging
	var mine, other bool
	b, backend, log := newHanging(t, func(ctx context.Context, p *dummy.Proc) int {
		harness.Eventually(t, "a sweep", time.Minute, func() bool { return backend.keep("w1") != nil })
		mine, other = backend.keep("w1")("alpha-1"), backend.keep("w1")("alpha-2")
		return exits(0)(ctx, p)
	}, nil)
	if res := b.result(t, request("alpha-1")); res.Status != schema.StatusDone || res.Fault != nil {
		t.Errorf("got %+v, fault %v", res, res.Fault)
	}
	if !mine || other {
		t.Errorf("a sweep keeps its own rollout: %t, that of an earlier process: %t", mine, other)
	}
	harness.Eventually(t, "a warning", time.Minute, func() bool { return strings.Contains(log.String(), "it goes on in the background") })
	if text := log.String(); strings.Count(text, "it goes on in the background") != 1 || !strings.Contains(text, `"backend":"dummy"`) {
		t.Errorf("the log is %s", text)
	}
	keep := backend.keep("w1")
	b.stop()
	if !keep("alpha-2") {
		t.Error("a sweep removes sandboxes after its worker has ended")
	}
}

// TestASweepThatHangsKeepsNoRolloutsOfAKilledProcess: another process of the worker was
// killed, and its lease ends although its sandboxes are not removed.
func TestASweepThatHangsKeepsNoRolloutsOfAKilledProcess(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	first, second := joined(t, state), joined(t, state)
	harness.Must(t, first.Begin())
	harness.Must(t, first.Start("i0", 1, func(int) {}))
	harness.Must(t, first.Listen())
	followed := make(chan error, 1)
	go func() { followed <- second.Follow(t.Context()) }()
	<-first.Asked()
	harness.Must(t, first.Retire(func() handover.Use { return handover.Use{Running: 1} }))
	harness.Must(t, <-followed)
	b, backend, _ := newHanging(t, exits(0), second)
	harness.Eventually(t, "the start of the second process", time.Minute, func() bool { return second.Lives("i0") })
	first.Leave() // as the kernel does for a killed process
	harness.Eventually(t, "the end of the first process", time.Minute, func() bool { return !second.Lives("i0") })
	harness.Eventually(t, "a sweep of its sandboxes", time.Minute, func() bool { return backend.keep("w1") != nil })
	if keep := backend.keep("w1"); keep == nil || keep("alpha-1") {
		t.Error("its sandboxes are not removed")
	}
	if res := b.result(t, request("alpha-1")); res.Status != schema.StatusDone {
		t.Errorf("got %+v", res)
	}
	b.stop()
	second.Leave()
}

func joined(t *testing.T, state string) *handover.Process {
	t.Helper()
	p, err := handover.Join(state)
	harness.Must(t, err)
	return p
}

// TestOthersWaitForTheTurnUntilNoSweepRuns: a process that retires ends its sweeps first.
func TestOthersWaitForTheTurnUntilNoSweepRuns(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	first, second := joined(t, state), joined(t, state)
	harness.Must(t, first.Begin())
	harness.Must(t, first.Listen())
	b, backend, _ := newHanging(t, exits(0), first)
	harness.Eventually(t, "the sweep", time.Minute, func() bool { return backend.keep("w1") != nil })
	if err := second.Begin(); !errors.Is(err, handover.ErrBusy) {
		t.Fatalf("got %v for the turn", err)
	}
	harness.Must(t, second.Follow(t.Context()))
	if !backend.keep("w1")("alpha-1") {
		t.Error("a sweep goes on after the hand-over")
	}
	b.stop()
	first.Leave()
	second.Leave()
}

// TestAnEndThatNobodyKnows: the record of a process stays if the other workers were not told
// of its end, so that the process that follows it tells them.
func TestAnEndThatNobodyKnows(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		state := t.TempDir()
		p := joined(t, state)
		harness.Must(t, p.Begin())
		log := &harness.Buffer{}
		b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}), func(c *worker.Config) {
			c.Process, c.Log = p, zerolog.New(log)
		})
		if res := b.result(t, request("alpha-1")); res.Status != schema.StatusDone {
			t.Errorf("got %+v", res)
		}
		if !told {
			b.nats.Shutdown()
		}
		b.stop()
		p.Leave()
		left, err := filepath.Glob(filepath.Join(state, "processes", "*.json"))
		harness.Must(t, err)
		if known := len(left) == 0; known != told {
			t.Errorf("told: %t, the records %v are left", told, left)
		}
		if warned := strings.Contains(log.String(), "the others were not told"); warned == told {
			t.Errorf("told: %t, the log is %s", told, log)
		}
	}
}
