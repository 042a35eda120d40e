package worker_test

import (
	"io"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
)

// TestAProcessThatRetiredAnswersOperators: it says that it does not run a rollout of its own
// instance, and leaves lines to another instance to that one.
func TestAProcessThatRetiredAnswersOperators(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	first, second := joined(t, state), joined(t, state)
	harness.Must(t, first.Begin())
	harness.Must(t, first.Listen())
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}), func(c *worker.Config) { c.Process = first })
	harness.Must(t, second.Follow(t.Context()))
	served, err := machines.ServeShells(t.Context(), b.nats.Worker(t, "w1"), "w1", line.DefaultTiming(), b.worker.Shell, b.worker.Elsewhere)
	harness.Must(t, err)
	t.Cleanup(served.Close)
	s, err := machines.OpenShell(t.Context(), b.nats.Ops(t), "w1", line.DefaultTiming(), schema.LineOpen{Want: schema.CanShell, ID: "alpha-1", Instance: "i1"})
	harness.Must(t, err)
	_, _ = io.Copy(io.Discard, s) // until the line is over
	if end := s.End(); !strings.Contains(end.Text, "alpha-1 does not run on this worker") {
		t.Errorf("the line ended with %+v", end)
	}
	if !b.worker.Elsewhere("i2") {
		t.Error("it answers for another instance")
	}
	b.stop()
	first.Leave()
	second.Leave()
}
