package local

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestACgroupWithoutItsLimitIsNotUsed: such as one that another user has made, to which
// the box could not be moved.
func TestACgroupWithoutItsLimitIsNotUsed(t *testing.T) {
	c, name := &cgroup{}, "turngate-test-"+strings.ToLower(rand.Text())
	err := c.limit(name, "pids", "pids.max", "pids.max", "some", "some")
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skipf("SKIPPED: this process may not make a cgroup: %v", err)
	}
	if err == nil || len(c.dirs) > 0 {
		t.Errorf("it is used: %v, %v", c.dirs, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		if left, _ := filepath.Glob(pattern + name); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}
