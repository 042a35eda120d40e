package place

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/sandboxes"
)

// TestOutcomesOfSandboxes tells failures of a host from requests that no host could serve
// and from rollouts that were stopped.
func TestOutcomesOfSandboxes(t *testing.T) {
	t.Parallel()
	over := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	broken := errors.New("no answer of the engine")
	for name, tt := range map[string]struct {
		ctx  context.Context
		err  error
		want telemetry.SandboxOutcome
	}{
		"made":         {t.Context(), nil, telemetry.SandboxCreated},
		"a limit":      {t.Context(), fmt.Errorf("create: %w", &sandboxes.UnsupportedError{Field: "sandbox.disk_bytes"}), telemetry.SandboxRefused},
		"no image":     {t.Context(), &sandboxes.ImageError{Image: "x"}, telemetry.SandboxRefused},
		"a cancel":     {over(errors.New("cancelled")), broken, telemetry.SandboxCancelled},
		"out of time":  {over(&ends.Overtime{Err: &ends.Broken{}}), broken, telemetry.SandboxFailed},
		"its own time": {t.Context(), context.DeadlineExceeded, telemetry.SandboxFailed},
	} {
		if got := outcomeOf(tt.ctx, tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
