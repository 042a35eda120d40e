package worker_test

import (
	"context"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// specs is a backend that records the descriptions of its sandboxes.
type specs struct {
	sandboxes.Backend
	mu   sync.Mutex
	made []sandboxes.Spec
}

func (b *specs) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	b.mu.Lock()
	b.made = append(b.made, s)
	b.mu.Unlock()
	return b.Backend.Create(ctx, s)
}

// TestCapsAreTheDefaults checks that an absent limit never gives more than the
// worker's cap, in the agent's sandbox and in a separate verifier's, and that a
// set one below the cap is kept.
func TestCapsAreTheDefaults(t *testing.T) {
	t.Parallel()
	caps := place.Caps{CPUs: 2, MemoryBytes: 64 << 20, DiskBytes: 128 << 20, Pids: 50}
	var record *specs
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}), func(c *worker.Config) {
		record = &specs{Backend: c.Backends[0]}
		c.Backends, c.Caps = []sandboxes.Backend{record}, caps
	})
	r := request("alpha-caps")
	r.Sandbox.MemoryBytes = 1 << 20
	r.Verify.Separate = &schema.SandboxChoice{Backend: "dummy", Pids: 7}
	if res := b.result(t, r); res.Status != schema.StatusDone || res.Reward == nil {
		t.Fatalf("the rollout ended as %s: %+v", res.Status, res.Fault)
	}
	if len(record.made) != 2 {
		t.Fatalf("%d sandboxes were made, not the agent's and the verifier's", len(record.made))
	}
	agent, verifier := record.made[0], record.made[1]
	if agent.CPUs != 2 || agent.MemoryBytes != 1<<20 || agent.DiskBytes != 128<<20 || agent.Pids != 50 {
		t.Errorf("the agent's sandbox has %v cpus, %d bytes of memory, %d of disk, %d pids", agent.CPUs, agent.MemoryBytes, agent.DiskBytes, agent.Pids)
	}
	if verifier.CPUs != 2 || verifier.MemoryBytes != 64<<20 || verifier.DiskBytes != 128<<20 || verifier.Pids != 7 {
		t.Errorf("the verifier's sandbox has %v cpus, %d bytes of memory, %d of disk, %d pids", verifier.CPUs, verifier.MemoryBytes, verifier.DiskBytes, verifier.Pids)
	}
}
