package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/dummy"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/worker"
)

// hungry makes sandboxes that end for lack of memory when a command whose last
// argument is eats runs in them.
type hungry struct {
	*dummy.Backend
	eats  string
	made  atomic.Int64
	cause error
}

func (b *hungry) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := b.Backend.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	b.made.Add(1)
	return &eaten{Sandbox: sb, b: b}, nil
}

type eaten struct {
	sandboxes.Sandbox
	b    *hungry
	gone atomic.Bool
}

func (s *eaten) Start(ctx context.Context, c sandboxes.Cmd) (sandboxes.Process, error) {
	if s.gone.Load() {
		return nil, s.b.cause
	}
	if c.Args[len(c.Args)-1] != s.b.eats {
		return s.Sandbox.Start(ctx, c)
	}
	s.gone.Store(true)
	return lost{cause: s.b.cause}, nil
}

func (s *eaten) Files() sandboxes.Files {
	if s.gone.Load() {
		return noFiles{cause: s.b.cause}
	}
	return s.Sandbox.Files()
}

func (s *eaten) KillAll(ctx context.Context) error {
	if s.gone.Load() {
		return s.b.cause
	}
	return s.Sandbox.KillAll(ctx)
}

type lost struct {
	sandboxes.Process
	cause error
}

func (l lost) Wait() (schema.Exit, error) { return schema.Exit{}, l.cause }

// noFiles panics in a call that the worker must not make after the loss.
type noFiles struct {
	sandboxes.Files
	cause error
}

func (f noFiles) Read(context.Context, string, int64) ([]byte, error) { return nil, f.cause }

func TestASandboxThatUsedUpItsMemoryIsNotTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name, eats, who, stage string
		status                 schema.Status
		cause                  error
		tries                  int64
	}{
		{"agent", "agent", schema.WhoAgent, "agent", schema.StatusDone, sandboxes.ErrMemory, 1},
		{"setup", "prepare", schema.WhoTask, "setup[0]", schema.StatusFailed, sandboxes.ErrMemory, 1},
		{"verifier", "verify", schema.WhoTask, "verify", schema.StatusFailed, sandboxes.ErrMemory, 1},
		{"lost for another reason", "agent", schema.WhoSandbox, "sandbox", schema.StatusDead, sandboxes.ErrLost, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			backend := &hungry{eats: c.eats, cause: c.cause}
			b := newBench(t, nil, func(w *worker.Config) {
				backend.Backend = &dummy.Backend{Programs: shells(map[string]dummy.Program{"prepare": exits(0), "verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)})}
				w.Backends = []sandboxes.Backend{backend}
			})
			r := request("alpha-1")
			r.Setup, r.MaxAttempts = []schema.Command{{Run: "prepare"}}, 2
			res := b.result(t, r)
			if res.Status != c.status || res.Reward != nil || res.Attempt != int(c.tries) || backend.made.Load() != c.tries {
				t.Fatalf("%s, attempt %d, %d sandboxes, fault %v", res.Status, res.Attempt, backend.made.Load(), res.Fault)
			}
			if res.Fault == nil || res.Fault.Who != c.who || res.Fault.Stage != c.stage || (res.Fault.Code == schema.CodeOOM) != (errors.Is(c.cause, sandboxes.ErrMemory)) {
				t.Errorf("fault %v", res.Fault)
			}
			if n := backend.Open(); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
		})
	}
}

// A trainer whose command uses up the memory of the sandbox ends its own
// verification.
func TestATrainersCommandThatUsesUpTheMemory(t *testing.T) {
	backend := &hungry{eats: "grade", cause: sandboxes.ErrMemory}
	b := newBench(t, nil, func(w *worker.Config) {
		backend.Backend = &dummy.Backend{Programs: map[string]dummy.Program{"agent": exits(0)}}
		w.Backends = []sandboxes.Backend{backend}
	})
	b.verifies(t, func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
		_, err := h.Exec(ctx, trainer.Command{Args: []string{"grade"}})
		return nil, err
	})
	res := b.result(t, byTrainer("alpha-1"))
	if res.Status != schema.StatusFailed || res.Attempt != 1 || res.Fault == nil || res.Fault.Code != schema.CodeOOM || !strings.HasPrefix(res.Fault.Stage, "verify") {
		t.Fatalf("%s, attempt %d, fault %v", res.Status, res.Attempt, res.Fault)
	}
}
