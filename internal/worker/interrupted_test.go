package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// An agent that ends while NATS is away ends its rollout without another
// attempt. Its results wait until NATS is back.
func TestAnAgentThatEndsInAnOutageIsNotRunAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	working, end := make(chan struct{}), make(chan struct{})
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": func(ctx context.Context, p *dummy.Proc) int {
		close(working) // panics on a second run
		<-end
		return exits(0)(ctx, p)
	}}))
	if err := b.trainer.Submit(t.Context(), []schema.Request{request("alpha-1")}); err != nil {
		t.Fatal(err)
	}
	<-working
	b.nats.Shutdown()
	close(end)
	b.nats = b.nats.Again(t)
	res := b.next(t)
	if res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 1 || res.Attempt != 1 {
		t.Fatalf("got %+v, fault %v", res, res.Fault)
	}
	if log := b.artifact(t, res, "agent.stdout.log"); log != "exit 0" {
		t.Errorf("its log is %q", log)
	}
	if s, err := b.nats.Ops(t).Records.State(t.Context(), "alpha-1"); err != nil || s.Tries != 1 {
		t.Errorf("state %+v, %v", s, err)
	}
}

func TestCancelEndsARunningRollout(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": func(ctx context.Context, _ *dummy.Proc) int {
		close(started)
		<-ctx.Done()
		return 1
	}}))
	go func() {
		<-started
		_ = b.trainer.Cancel([]schema.ID{"alpha-1"}, "stale")
	}()
	if res := b.result(t, request("alpha-1")); res.Status != schema.StatusCancelled || res.Reward != nil || res.Fault.Code != schema.CodeCancelled || res.Fault.Message != "cancelled by its trainer: stale" {
		t.Fatalf("got %+v", res)
	}
}

func TestDrainReturnsUnfinishedRollouts(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	programs := shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": func(ctx context.Context, _ *dummy.Proc) int {
		close(started)
		<-ctx.Done()
		return 1
	}})
	b := newBench(t, programs, func(c *worker.Config) { c.Grace = time.Millisecond })
	if err := b.trainer.Submit(t.Context(), []schema.Request{request("alpha-1")}); err != nil {
		t.Fatal(err)
	}
	<-started
	b.stop()
	ops := b.nats.Ops(t)
	s, err := ops.Records.State(t.Context(), "alpha-1")
	if err != nil || s.Status != schema.StatusQueued || s.Attempt != 1 || s.Tries != 0 {
		t.Fatalf("got %+v, %v", s, err)
	}
	if _, err := ops.Records.Result(t.Context(), "alpha-1"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("a drained rollout has a result: %v", err)
	}
}

func TestDrainLetsRunningRolloutsEnd(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": func(context.Context, *dummy.Proc) int {
		close(started)
		<-release
		return 0
	}}))
	go func() {
		<-started
		go b.stop()
		close(release)
	}()
	if res := b.result(t, request("alpha-1")); res.Status != schema.StatusDone || *res.Reward != 1 {
		t.Fatalf("got %+v", res)
	}
}

// The host sends SIGTERM to the worker, and to the commands of its rollouts, too.
func TestDrainReturnsRolloutsThatTheHostTerminated(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]string{"the agent": "agent", "the verifier": "verify"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b *bench
			stopped, log := make(chan struct{}), &harness.Buffer{}
			programs := map[string]dummy.Program{"agent": exits(0), "verify": reward("1")}
			programs[program] = func(ctx context.Context, p *dummy.Proc) int {
				go func() {
					b.stop()
					close(stopped)
				}()
				harness.Eventually(t, "the begin of the stop", time.Minute, func() bool { return strings.Contains(log.String(), "stopping: no new rollouts") })
				return exits(128+int(syscall.SIGTERM))(ctx, p)
			}
			b = newBench(t, shells(map[string]dummy.Program{"verify": programs["verify"]}, map[string]dummy.Program{"agent": programs["agent"]}),
				func(c *worker.Config) { c.Log = zerolog.New(log) })
			if err := b.trainer.Submit(t.Context(), []schema.Request{request("alpha-1")}); err != nil {
				t.Fatal(err)
			}
			<-stopped
			s, err := b.nats.Ops(t).Records.State(t.Context(), "alpha-1")
			if err != nil || s.Status != schema.StatusQueued || s.Tries != 0 {
				t.Fatalf("got %+v, %v", s, err)
			}
		})
	}
}

func TestABrokenSandboxIsTriedAgainAndThenDead(t *testing.T) {
	t.Parallel()
	base := &dummy.Backend{}

	var tries int
	var mu sync.Mutex
	broken := &brokenBackend{Backend: base, fail: func() error {
		mu.Lock()
		defer mu.Unlock()
		tries++
		return errors.New("no space left on device")
	}}
	b2 := newBench(t, nil, func(c *worker.Config) { c.Backends = []sandboxes.Backend{broken} })
	r := request("alpha-1")
	r.MaxAttempts = 2
	res := b2.result(t, r)
	mu.Lock()
	defer mu.Unlock()
	if res.Status != schema.StatusDead || res.Attempt != 2 || tries != 2 || !strings.Contains(res.Fault.Message, "no space") || res.Reward != nil {
		t.Fatalf("after %d tries: %+v %v", tries, res, res.Fault)
	}
}

type brokenBackend struct {
	*dummy.Backend
	fail func() error
}

func (b *brokenBackend) Create(context.Context, sandboxes.Spec) (sandboxes.Sandbox, error) {
	return nil, b.fail()
}
