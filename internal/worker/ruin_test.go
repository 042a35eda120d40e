package worker_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// hungry makes sandboxes that end, for the reason cause, when a command with eats as its last
// argument runs in them.
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

func (f noFiles) Read(context.Context, string, io.Writer, int64) error { return f.cause }

// TestASandboxThatItsProcessesEndedIsNotTriedAgain ends sandboxes for lack of memory
// and by their processes.
func TestASandboxThatItsProcessesEndedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, eats, who, stage string
		status                 schema.Status
		cause                  error
		tries                  int64
	}{
		{"agent", "agent", schema.WhoAgent, "agent", schema.StatusDone, sandboxes.ErrMemory, 1},
		{"setup", "prepare", schema.WhoTask, "setup[0]", schema.StatusFailed, sandboxes.ErrMemory, 1},
		{"verifier", "verify", schema.WhoTask, "verify", schema.StatusFailed, sandboxes.ErrMemory, 1},
		{"agent that ends the helper", "agent", schema.WhoAgent, "agent", schema.StatusDone, sandboxes.ErrKilled, 1},
		{"setup that ends the helper", "prepare", schema.WhoTask, "setup[0]", schema.StatusFailed, sandboxes.ErrKilled, 1},
		{"verifier that ends the helper", "verify", schema.WhoTask, "verify", schema.StatusFailed, sandboxes.ErrKilled, 1},
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

// If a trainer's command uses up the memory of the sandbox, the trainer's verification ends.
func TestATrainersCommandThatUsesUpTheMemory(t *testing.T) {
	t.Parallel()
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

// refusing makes sandboxes that refuse to empty a folder.
type refusing struct {
	*dummy.Backend
	made   atomic.Int64
	reason string
}

func (b *refusing) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := b.Backend.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	b.made.Add(1)
	return refusal{sb, b}, nil
}

type refusal struct {
	sandboxes.Sandbox
	b *refusing
}

func (s refusal) Files() sandboxes.Files { return refusedFiles{s.Sandbox.Files(), s.b} }

type refusedFiles struct {
	sandboxes.Files
	b *refusing
}

func (f refusedFiles) Empty(_ context.Context, dir string, _ fs.FileMode, _ string) error {
	return &sandboxes.RefusedError{Operation: "empty", Reason: dir + ": " + f.b.reason}
}

// filling makes sandboxes in which a process that the agent left fills the verifier's
// folder as fast as it is emptied.
type filling struct{ *dummy.Backend }

func (b filling) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := b.Backend.Create(ctx, s)
	return filled{sb, &atomic.Int64{}}, err
}

type filled struct {
	sandboxes.Sandbox
	emptied *atomic.Int64
}

func (s filled) Files() sandboxes.Files { return filledFiles{s.Sandbox.Files(), s.emptied} }

type filledFiles struct {
	sandboxes.Files
	emptied *atomic.Int64
}

func (f filledFiles) Empty(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	if dir == tasks.VerifierDir && f.emptied.Add(1) > 1 { // the first time is before the agent
		<-ctx.Done()
		return ctx.Err()
	}
	return f.Files.Empty(ctx, dir, mode, owner)
}

func TestAVerifiersFolderThatFillsForEver(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil, func(w *worker.Config) {
		w.Backends = []sandboxes.Backend{filling{&dummy.Backend{Programs: shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)})}}}
	})
	r := request("alpha-1")
	r.Limits.SetupMS = 500
	res := b.result(t, r)
	if f := res.Fault; res.Status != schema.StatusDone || res.Attempt != 1 || res.Reward != nil || f == nil || f.Who != schema.WhoAgent || f.Code != schema.CodeSpoiled || f.Stage != "verify" {
		t.Errorf("%s, attempt %d, reward %v, fault %v", res.Status, res.Attempt, res.Reward, res.Fault)
	}
}

// filed makes sandboxes with a file as working directory.
type filed struct {
	*dummy.Backend
	made atomic.Int64
}

func (b *filed) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := b.Backend.Create(ctx, s)
	b.made.Add(1)
	return noStart{sb}, err
}

type noStart struct{ sandboxes.Sandbox }

func (noStart) Start(_ context.Context, c sandboxes.Cmd) (sandboxes.Process, error) {
	return nil, &sandboxes.NoCommandError{Arg: c.Args[0], Reason: "open /etc/passwd: not a directory"}
}

func TestAWorkingDirectoryThatIsAFileIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	backend := &filed{}
	b := newBench(t, nil, func(w *worker.Config) {
		backend.Backend = &dummy.Backend{}
		w.Backends = []sandboxes.Backend{backend}
	})
	r := request("alpha-1")
	r.MaxAttempts = 3
	res := b.result(t, r)
	if res.Status != schema.StatusFailed || res.Attempt != 1 || backend.made.Load() != 1 || res.Fault == nil || !strings.Contains(res.Fault.Message, "not a directory") {
		t.Errorf("%s, attempt %d, %d sandboxes, fault %v", res.Status, res.Attempt, backend.made.Load(), res.Fault)
	}
}

func TestFilesThatASandboxRefusesAreNotTriedAgain(t *testing.T) {
	t.Parallel()
	for reason, code := range map[string]string{"not a directory": schema.CodeSetup, "no space left on device": schema.CodeDisk} {
		backend := &refusing{reason: reason}
		b := newBench(t, nil, func(w *worker.Config) {
			backend.Backend = &dummy.Backend{Programs: map[string]dummy.Program{"agent": exits(0)}}
			w.Backends = []sandboxes.Backend{backend}
		})
		r := request("alpha-1")
		r.MaxAttempts = 3
		res := b.result(t, r)
		if res.Status != schema.StatusFailed || res.Attempt != 1 || backend.made.Load() != 1 || res.Fault == nil || res.Fault.Code != code ||
			res.Fault.Who != schema.WhoTask || res.Fault.Stage != "upload" || !strings.Contains(res.Fault.Message, reason) {
			t.Errorf("%s: %s, attempt %d, %d sandboxes, fault %v", reason, res.Status, res.Attempt, backend.made.Load(), res.Fault)
		}
	}
}
