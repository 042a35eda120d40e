package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// cgroup limits the process tree of one sandbox if this process may make
// cgroups. It supports the unified hierarchy (v2) and the older one with a
// folder per controller (v1).
type cgroup struct {
	dirs    []string
	oomFile string
}

const cgroupBase = "/sys/fs/cgroup"

// cgroupLimits lists the Spec's limits with their files and values in the
// unified and the older hierarchy.
func cgroupLimits(s sandboxes.Spec) []struct{ field, controller, unified, older, value, olderValue string } {
	const period = 100_000
	quota := strconv.FormatInt(int64(s.CPUs*period), 10)
	all := []struct{ field, controller, unified, older, value, olderValue string }{}
	add := func(field, controller, unified, older, value, olderValue string) {
		all = append(all, struct{ field, controller, unified, older, value, olderValue string }{field, controller, unified, older, value, olderValue})
	}
	if s.MemoryBytes > 0 {
		n := strconv.FormatInt(s.MemoryBytes, 10)
		add(schema.LimitMemory, "memory", "memory.max", "memory.limit_in_bytes", n, n)
	}
	if s.CPUs > 0 {
		add(schema.LimitCPUs, "cpu", "cpu.max", "cpu.cfs_quota_us", quota+" "+strconv.Itoa(period), quota)
	}
	if s.Pids > 0 {
		n := strconv.FormatInt(s.Pids, 10)
		add(schema.LimitPids, "pids", "pids.max", "pids.max", n, n)
	}
	return all
}

// newCgroup makes the cgroup with its limits. It notes or refuses a limit that
// cannot be set. If the limit of processes cannot be set, it returns pids false
// instead.
func newCgroup(name string, s sandboxes.Spec) (c *cgroup, pids bool, err error) {
	c, pids = &cgroup{}, true
	for _, l := range cgroupLimits(s) {
		err := c.limit(name, l.controller, l.unified, l.older, l.value, l.olderValue)
		if err == nil {
			continue
		}
		if l.field == schema.LimitPids {
			pids = false
			continue
		}
		if err := s.Weaken(l.field, l.value, fmt.Sprintf(
			"the local sandbox needs a writable cgroup with the %s controller for it (%v); the docker sandbox has it", l.controller, err)); err != nil {
			c.remove()
			return nil, false, err
		}
	}
	return c, pids, nil
}

func (c *cgroup) limit(name, controller, unified, older, value, olderValue string) error {
	dir, file := filepath.Join(cgroupBase, controller, name), older
	if isUnified() {
		dir, file = filepath.Join(cgroupBase, name), unified
		olderValue = value
	}
	// The folder exists because of another limit, or because a worker died; it is
	// used in both cases. Another user's cannot be used.
	made := os.Mkdir(dir, 0o755)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return made
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(olderValue), 0); err != nil {
		if made == nil {
			removeGroup(dir)
		}
		return err
	}
	if !slices.Contains(c.dirs, dir) {
		c.dirs = append(c.dirs, dir)
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

// add moves a process into the cgroup.
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

// remove removes the cgroup.
func (c *cgroup) remove() {
	if c == nil {
		return
	}
	for _, dir := range c.dirs {
		removeGroup(dir)
	}
}

// removeGroup removes a cgroup, unless its processes live on. The kernel takes a moment to
// release dead ones.
func removeGroup(dir string) {
	for range 200 {
		if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// sweepCgroups removes cgroups with this prefix.
func sweepCgroups(prefix string, keep func(name string) bool) {
	for _, pattern := range []string{cgroupBase + "/" + prefix + "*", cgroupBase + "/*/" + prefix + "*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			if !keep(filepath.Base(dir)) {
				removeGroup(dir)
			}
		}
	}
}
