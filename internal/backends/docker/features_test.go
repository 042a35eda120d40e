package docker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"

	"github.com/turngate/turngate/internal/harness"
)

// TestEnginesAreDescribed reads the fields of /info and /version as engines give them.
func TestEnginesAreDescribed(t *testing.T) {
	for name, c := range map[string]struct {
		info, version string
		buildKit      bool
		engine        string
		lacks         []string // parts of the sentences, in their order
	}{
		"docker 20.10 with cgroup v1": {
			`{"ServerVersion":"20.10.24+dfsg1","CgroupVersion":"1","CgroupDriver":"cgroupfs","SecurityOptions":["name=seccomp,profile=default"],"MemoryLimit":true,"SwapLimit":true,"PidsLimit":true,"CpuCfsQuota":true,"CpuCfsPeriod":true}`,
			`{"Components":[{"Name":"Engine","Version":"20.10.24+dfsg1"},{"Name":"containerd"},{"Name":"runc"}]}`, true, "Docker 20.10.24+dfsg1, cgroup v1", nil,
		},
		"rootless docker with cgroup v1": {
			`{"ServerVersion":"28.5.2","CgroupVersion":"1","CgroupDriver":"none","SecurityOptions":["name=seccomp,profile=builtin","name=rootless"],"MemoryLimit":false,"PidsLimit":false,"CpuCfsQuota":false}`,
			`{"Components":[{"Name":"Engine"}]}`, true, "Docker 28.5.2, cgroup v1, rootless",
			[]string{"no limit of cpus", "no limit of memory", "no limit of processes", "limits nothing with cgroup v1", "rootless engines"},
		},
		"rootless docker with cgroup v2 and without the cpu controller": {
			`{"ServerVersion":"28.5.2","CgroupVersion":"2","CgroupDriver":"systemd","SecurityOptions":["name=rootless","name=cgroupns"],"MemoryLimit":true,"PidsLimit":true,"CpuCfsQuota":false}`,
			`{"Components":[{"Name":"Engine"}]}`, true, "Docker 28.5.2, cgroup v2, rootless", []string{"no limit of cpus", "rootless engines"},
		},
		"podman": {
			`{"ServerVersion":"4.3.1","CgroupVersion":"2","CgroupDriver":"systemd","SecurityOptions":["name=seccomp,profile=default"],"MemoryLimit":true,"PidsLimit":true,"CpuCfsQuota":true}`,
			`{"Components":[{"Name":"Podman Engine","Version":"4.3.1"},{"Name":"Conmon"}]}`, false, "Podman 4.3.1, cgroup v2", []string{"no BuildKit", "Podman"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var info system.Info
			var version types.Version
			harness.Must(t, json.Unmarshal([]byte(c.info), &info))
			harness.Must(t, json.Unmarshal([]byte(c.version), &version))
			engine, lacks := describe(&info, &version, c.buildKit)
			if engine != c.engine || len(lacks) != len(c.lacks) {
				t.Fatalf("%q, lacks %q", engine, lacks)
			}
			for i, want := range c.lacks {
				if !strings.Contains(lacks[i], want) {
					t.Errorf("%q: want %q", lacks[i], want)
				}
			}
		})
	}
}
