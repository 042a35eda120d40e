package box

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// oomCounter reads the number of kills for lack of memory.
type oomCounter struct{ f *os.File }

func (o *oomCounter) count() int64 {
	if o == nil || o.f == nil {
		return 0
	}
	return OOMKills(o.f)
}

// OOMKills reads the number of kills for lack of memory from memory.events of a
// cgroup, or from memory.oom_control in the older hierarchy.
func OOMKills(f io.ReaderAt) int64 {
	buf := make([]byte, 4096)
	n, _ := f.ReadAt(buf, 0)
	for line := range strings.Lines(string(buf[:n])) {
		var v int64
		if _, err := fmt.Sscanf(line, "oom_kill %d", &v); err == nil {
			return v
		}
	}
	return 0
}

// openOOMCounter opens the counter of this sandbox's memory cgroup.
func openOOMCounter(fd int) *oomCounter {
	if fd > 0 {
		return &oomCounter{os.NewFile(uintptr(fd), "oom")}
	}
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if f, err := os.Open(path); err == nil {
			return &oomCounter{f}
		}
	}
	return nil
}
