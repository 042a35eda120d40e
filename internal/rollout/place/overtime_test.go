package place

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// slowFiles never end an operation by themselves.
type slowFiles struct{ sandboxes.Files }

func (slowFiles) TarOut(ctx context.Context, _ string, _ io.Writer, _ sandboxes.TarOptions) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestAPhaseThatIsOverItsTimeLimit checks that the agent has the fault if an
// operation on its files took the time, and otherwise the sandbox.
func TestAPhaseThatIsOverItsTimeLimit(t *testing.T) {
	for name, c := range map[string]struct {
		touched, direct, fromAgent bool
	}{
		"files of the agent":        {touched: true, fromAgent: true},
		"before the agent":          {},
		"no operation on its files": {touched: true, direct: true},
	} {
		t.Run(name, func(t *testing.T) {
			var fault *schema.Fault
			r := &stage.Stages{Record: record.New(&schema.Request{ID: "alpha-1"}, 1, "w1", record.Exits{Log: zerolog.Nop(), Emit: func(e *schema.Event) {
				if e.Phase != nil && e.Phase.Ended {
					fault = e.Phase.Fault
				}
			}})}
			var touched atomic.Bool
			touched.Store(c.touched)
			files := touchedFiles{slowFiles{}, &touched}
			err := r.Run(t.Context(), "artifacts", 50, func(ctx context.Context, _ *record.Phase) error {
				if c.direct {
					<-ctx.Done()
				}
				return files.TarOut(ctx, "/app", io.Discard, sandboxes.TarOptions{})
			})
			var spoiled *ends.Spoiled
			if got := errors.As(err, &spoiled); got != c.fromAgent {
				t.Fatalf("got %v", err)
			}
			if c.fromAgent && (fault == nil || fault.Who != schema.WhoAgent || fault.Code != schema.CodeSpoiled) {
				t.Errorf("the fault is %+v", fault)
			}
			var broken *ends.Broken
			if !c.fromAgent && (!errors.As(err, &broken) || broken.Fault.Who != schema.WhoSandbox || broken.Fault.Code != schema.CodeTimeout) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// unreadable files get data that the worker cannot read.
type unreadable struct{ sandboxes.Files }

func (unreadable) TarIn(_ context.Context, _ string, r io.Reader, _ string) error {
	_, err := io.ReadAll(sandboxes.Source(r))
	return err
}

// The worker's disk is no fault of the agent.
func TestUnreadableDataAreNotTheAgentsFault(t *testing.T) {
	var touched atomic.Bool
	touched.Store(true)
	broken := errors.New("input/output error")
	err := touchedFiles{unreadable{}, &touched}.TarIn(t.Context(), "/tests", iotest.ErrReader(broken), "")
	var spoiled *ends.Spoiled
	if errors.As(err, &spoiled) || !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// A rollout that is cancelled during a slow operation is cancelled, and not
// spoiled.
func TestACancelIsNotTheAgentsFault(t *testing.T) {
	var fault *schema.Fault
	r := &stage.Stages{Record: record.New(&schema.Request{ID: "alpha-1"}, 1, "w1", record.Exits{Log: zerolog.Nop(), Emit: func(e *schema.Event) {
		if e.Phase != nil {
			fault = e.Phase.Fault
		}
	}})}
	var touched atomic.Bool
	touched.Store(true)
	ctx, cancel := context.WithCancelCause(t.Context())
	err := r.Run(ctx, "artifacts", 60_000, func(ctx context.Context, _ *record.Phase) error {
		cancel(queue.ErrCancelled)
		return touchedFiles{slowFiles{}, &touched}.TarOut(ctx, "/app", io.Discard, sandboxes.TarOptions{})
	})
	var spoiled *ends.Spoiled
	if errors.As(err, &spoiled) || !errors.Is(err, queue.ErrCancelled) {
		t.Errorf("got %v", err)
	}
	if fault == nil || fault.Code != schema.CodeCancelled || fault.Who != schema.WhoTrainer {
		t.Errorf("the event of the phase has the fault %+v", fault)
	}
}
