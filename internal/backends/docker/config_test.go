package docker

import (
	"testing"

	"github.com/docker/docker/api/types/image"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// TestASandboxWithoutLimitsHasDefaults checks the limits of a specification that
// names none, and that a named one replaces its default.
func TestASandboxWithoutLimitsHasDefaults(t *testing.T) {
	for _, c := range []struct{ given, pids, disk int64 }{{0, sandboxes.DefaultPids, sandboxes.DefaultDiskBytes}, {77, 77, 77}} {
		s := sandboxes.Spec{Pids: c.given, DiskBytes: c.given}
		_, host := containerConfig(s, "image", nil)
		if host.PidsLimit == nil || *host.PidsLimit != c.pids+box.Threads {
			t.Errorf("pids %d: the container may have %v processes, want %d", c.given, host.PidsLimit, c.pids)
		}
		if cfg := boxConfig(s, image.InspectResponse{}); cfg.DiskBytes != c.disk {
			t.Errorf("disk %d: the box allows %d bytes, want %d", c.given, cfg.DiskBytes, c.disk)
		}
	}
}
