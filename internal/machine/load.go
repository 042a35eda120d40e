package machine

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/schema"
)

// Load measures this host and this process. The memory is that of the host, or of a
// control group (v2) of this process that has less. A value that cannot be read stays 0.
func Load() *schema.Load {
	l := &schema.Load{CPUs: runtime.NumCPU()}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(data), &l.Load) // 0 if it cannot be read
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		l.MemoryBytes, l.FreeMemoryBytes = memory(data, "MemTotal:"), memory(data, "MemAvailable:")
	}
	if data, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		most, free := groupMemory("/sys/fs/cgroup", data)
		l.MemoryBytes, l.FreeMemoryBytes = min(l.MemoryBytes, most), min(l.FreeMemoryBytes, free)
	}
	if data, err := os.ReadFile("/proc/self/status"); err == nil {
		l.WorkerBytes = memory(data, "VmRSS:")
	}
	return l
}

// groupMemory returns the smallest limit and the smallest free memory of the control
// groups that /proc/self/cgroup names, with those above them. Without limits both are
// the largest number.
func groupMemory(root string, procCgroup []byte) (most, free int64) {
	most, free = math.MaxInt64, math.MaxInt64
	for line := range bytes.Lines(procCgroup) {
		group, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::")
		if !ok {
			continue
		}
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			dir := filepath.Join(root, group)
			if limit := number(dir, "memory.max"); limit > 0 {
				cached := int64(0) // files that the kernel drops when programs need memory
				if data, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
					cached = field(data, "inactive_file")
				}
				most = min(most, limit)
				free = min(free, max(limit-number(dir, "memory.current")+cached, 0))
			}
			if group == "/" {
				break
			}
		}
	}
	return most, free
}

// number reads a file with one number; 0 if there is none, as in "max".
func number(dir, name string) (n int64) {
	if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
		_, _ = fmt.Sscan(string(data), &n)
	}
	return n
}

// FreeDisk returns the bytes that programs can still write to the file system of a
// folder, and its size. Both are 0 if they cannot be read.
func FreeDisk(dir string) (free, size int64) {
	free, size, _ = kernel.Disk(dir)
	return free, size
}

// Measure fills in the load of this host. A value that cannot be read stays 0.
func (s *State) Measure(m *schema.Machine) {
	l := Load()
	m.CPUs, m.Load, m.MemoryBytes, m.FreeMemoryBytes = l.CPUs, l.Load, l.MemoryBytes, l.FreeMemoryBytes
	m.FreeDiskBytes, _ = FreeDisk(s.Dir)
}

// memory reads a value of a file such as /proc/meminfo, in bytes; 0 if it is missing.
func memory(data []byte, name string) int64 { return field(data, name) << 10 }

// field reads the number that stands behind a name at the begin of a line; 0 if it is
// missing.
func field(data []byte, name string) (n int64) {
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			_, _ = fmt.Sscan(string(rest), &n) // 0 if it cannot be read
			break
		}
	}
	return n
}
