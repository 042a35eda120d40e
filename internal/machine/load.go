package machine

import (
	"bytes"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/schema"
)

// Load measures this host and this process. A value that cannot be read stays 0.
func Load() *schema.Load {
	l := &schema.Load{CPUs: runtime.NumCPU()}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(data), &l.Load) // 0 if it cannot be read
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		l.MemoryBytes, l.FreeMemoryBytes = memory(data, "MemTotal:"), memory(data, "MemAvailable:")
	}
	if data, err := os.ReadFile("/proc/self/status"); err == nil {
		l.WorkerBytes = memory(data, "VmRSS:")
	}
	return l
}

// Measure fills in the load of this host. A value that cannot be read stays 0.
func (s *State) Measure(m *schema.Machine) {
	l := Load()
	m.CPUs, m.Load, m.MemoryBytes, m.FreeMemoryBytes = l.CPUs, l.Load, l.MemoryBytes, l.FreeMemoryBytes
	var disk unix.Statfs_t
	if unix.Statfs(s.Dir, &disk) == nil {
		m.FreeDiskBytes = int64(disk.Bavail) * disk.Bsize //nolint:gosec // sizes of disks fit
	}
}

// memory reads a value of a file such as /proc/meminfo, in bytes; 0 if it is missing.
func memory(data []byte, name string) int64 {
	var kb int64
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			_, _ = fmt.Sscan(string(rest), &kb) // 0 if it cannot be read
		}
	}
	return kb << 10
}
