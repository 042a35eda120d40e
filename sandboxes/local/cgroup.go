package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/sandboxes"
)

// cgroup limits one sandbox's whole tree, where this process may make one.
// Both the unified hierarchy and the older one with a folder per controller
// are known.
type cgroup struct {
	dirs    []string
	oomFile string
}

const cgroupBase = "/sys/fs/cgroup"

// limits are the files that hold a limit, unified and older.
func cgroupLimits(s sandboxes.Spec) []struct{ field, controller, unified, older, value, olderValue string } {
	const period = 100_000
	quota := strconv.FormatInt(int64(s.CPUs*period), 10)
	all := []struct{ field, controller, unified, older, value, olderValue string }{}
	add := func(field, controller, unified, older, value, olderValue string) {
		all = append(all, struct{ field, controller, unified, older, value, olderValue string }{field, controller, unified, older, value, olderValue})
	}
	if s.MemoryBytes > 0 {
		n := strconv.FormatInt(s.MemoryBytes, 10)
		add("sandbox.memory_bytes", "memory", "memory.max", "memory.limit_in_bytes", n, n)
	}
	if s.CPUs > 0 {
		add("sandbox.cpus", "cpu", "cpu.max", "cpu.cfs_quota_us", quota+" "+strconv.Itoa(period), quota)
	}
	if s.Pids > 0 {
		n := strconv.FormatInt(s.Pids, 10)
		add("sandbox.pids", "pids", "pids.max", "pids.max", n, n)
	}
	return all
}

// newCgroup makes the group with its limits; nil when the spec asks for none.
// A limit that cannot be set is refused by name.
func newCgroup(name string, s sandboxes.Spec) (*cgroup, error) {
	limits := cgroupLimits(s)
	if len(limits) == 0 {
		return nil, nil
	}
	c := &cgroup{}
	for _, l := range limits {
		if err := c.limit(name, l.controller, l.unified, l.older, l.value, l.olderValue); err != nil {
			c.remove()
			return nil, &sandboxes.UnsupportedError{Field: l.field, Value: l.value, Reason: fmt.Sprintf(
				"the local sandbox needs a writable cgroup with the %s controller for it (%v); use the docker sandbox, or ask without this limit", l.controller, err)}
		}
	}
	return c, nil
}

func (c *cgroup) limit(name, controller, unified, older, value, olderValue string) error {
	dir, file := filepath.Join(cgroupBase, controller, name), older
	if isUnified() {
		dir, file = filepath.Join(cgroupBase, name), unified
		olderValue = value
	}
	// It is there for another limit, or since a worker died: then it is taken over.
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !slices.Contains(c.dirs, dir) {
		c.dirs = append(c.dirs, dir)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(olderValue), 0); err != nil {
		return err
	}
	if controller == "memory" {
		c.oomFile = filepath.Join(dir, "memory.oom_control")
		if isUnified() {
			c.oomFile = filepath.Join(dir, "memory.events")
			_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0)
		} else {
			_ = os.WriteFile(filepath.Join(dir, "memory.memsw.limit_in_bytes"), []byte(value), 0)
		}
	}
	return nil
}

func isUnified() bool {
	_, err := os.Stat(filepath.Join(cgroupBase, "cgroup.controllers"))
	return err == nil
}

// add moves a process into the group.
func (c *cgroup) add(pid int) error {
	if c == nil {
		return nil
	}
	for _, dir := range c.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("move the box into its cgroup: %w", err)
		}
	}
	return nil
}

// remove removes the group; the kernel takes a moment to forget dead
// processes.
func (c *cgroup) remove() {
	if c == nil {
		return
	}
	for _, dir := range c.dirs {
		for range 200 {
			if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// sweepCgroups removes groups without processes whose name has this prefix.
func sweepCgroups(prefix string, keep func(name string) bool) {
	for _, pattern := range []string{cgroupBase + "/" + prefix + "*", cgroupBase + "/*/" + prefix + "*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err == nil && strings.TrimSpace(string(procs)) == "" && !keep(filepath.Base(dir)) {
				_ = os.Remove(dir)
			}
		}
	}
}
