package worker

import (
	"fmt"
	"slices"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Caps are what this worker allows any request. A limit of 0 means none.
type Caps struct {
	Networks    []string // besides none
	CPUs        float64
	MemoryBytes int64
	DiskBytes   int64
}

func (c Caps) check(s schema.SandboxChoice) error {
	if s.Network != schema.NetworkNone && !slices.Contains(c.Networks, s.Network) {
		return &sandboxes.UnsupportedError{Field: "sandbox.network", Value: s.Network,
			Reason: "this worker gives sandboxes no network; start it with --allow-network " + s.Network + ", or ask for none"}
	}
	if c.CPUs > 0 && s.CPUs > c.CPUs {
		return &sandboxes.UnsupportedError{Field: "sandbox.cpus", Value: fmt.Sprint(s.CPUs), Reason: fmt.Sprintf("this worker allows %v", c.CPUs)}
	}
	if c.MemoryBytes > 0 && s.MemoryBytes > c.MemoryBytes {
		return &sandboxes.UnsupportedError{Field: "sandbox.memory_bytes", Value: fmt.Sprint(s.MemoryBytes), Reason: fmt.Sprintf("this worker allows %d", c.MemoryBytes)}
	}
	if c.DiskBytes > 0 && s.DiskBytes > c.DiskBytes {
		return &sandboxes.UnsupportedError{Field: "sandbox.disk_bytes", Value: fmt.Sprint(s.DiskBytes), Reason: fmt.Sprintf("this worker allows %d", c.DiskBytes)}
	}
	return nil
}
