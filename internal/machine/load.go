package machine

import (
	"bytes"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/schema"
)

// Measure fills in the load of this host. A value that cannot be read stays 0.
func (s *State) Measure(m *schema.Machine) {
	m.CPUs = runtime.NumCPU()
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(data), &m.Load) // 0 if it cannot be read
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		m.MemoryBytes, m.FreeMemoryBytes = memory(data, "MemTotal:"), memory(data, "MemAvailable:")
	}
	var disk unix.Statfs_t
	if unix.Statfs(s.Dir, &disk) == nil {
		m.FreeDiskBytes = int64(disk.Bavail) * disk.Bsize //nolint:gosec // sizes of disks fit
	}
}

// memory reads a value of /proc/meminfo, in bytes; 0 if it is missing.
func memory(data []byte, name string) int64 {
	var kb int64
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			_, _ = fmt.Sscan(string(rest), &kb) // 0 if it cannot be read
		}
	}
	return kb << 10
}
