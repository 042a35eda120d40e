package docker

import (
	"cmp"
	"crypto/rand"
	"debug/elf"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/box"
	"github.com/turngate/turngate/schema"
)

// boxConfig is what the box is told. The image's own variables come before the
// task's.
func boxConfig(s sandboxes.Spec, img image.InspectResponse) *box.Config {
	c := &box.Config{
		Secret: make([]byte, 32), Socket: runPath + "/" + socketName,
		LifeMS: cmp.Or(s.Life, 24*time.Hour).Milliseconds(), LostMS: cmp.Or(s.Lost, 5*time.Minute).Milliseconds(),
		User: s.User, Workdir: s.Workdir,
	}
	_, _ = rand.Read(c.Secret) // never fails
	if img.Config != nil {
		c.Env = append(c.Env, img.Config.Env...)
		c.User = cmp.Or(c.User, img.Config.User)
		c.Workdir = cmp.Or(c.Workdir, img.Config.WorkingDir)
	}
	c.Workdir = cmp.Or(c.Workdir, sandboxes.DefaultWorkdir)
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		c.Env = append(c.Env, k+"="+s.Env[k])
	}
	return c
}

// containerConfig is what the engine is told; no secret is in it.
func containerConfig(s sandboxes.Spec, imageID, helper, runDir string) (*container.Config, *container.HostConfig) {
	cfg := &container.Config{
		Image:       imageID,
		Entrypoint:  []string{sandboxes.HelperPath, "box", runPath + "/" + configName},
		Cmd:         []string{},
		User:        "0:0",
		WorkingDir:  "/",
		Hostname:    "sandbox",
		Labels:      map[string]string{labelOwner: s.Owner, labelRollout: string(s.Rollout), labelAttempt: strconv.Itoa(s.Attempt)},
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	pids := cmp.Or(s.Pids, defaultPids)
	noInit := false
	host := &container.HostConfig{
		NetworkMode: "none",
		AutoRemove:  true, // a box that ended by itself leaves nothing, even without its worker
		Init:        &noInit,
		CapDrop:     []string{"ALL"},
		CapAdd: []string{
			"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
		},
		SecurityOpt: []string{"no-new-privileges"},
		LogConfig:   container.LogConfig{Type: "none"},
		Resources: container.Resources{
			Memory: s.MemoryBytes, MemorySwap: s.MemoryBytes, NanoCPUs: int64(s.CPUs * 1e9), PidsLimit: &pids,
		},
		Mounts: []mount.Mount{readOnly(helper, sandboxes.HelperPath), readOnly(runDir, runPath)},
	}
	if s.Network == schema.NetworkOpen {
		host.NetworkMode = "bridge"
	}
	if s.DiskBytes > 0 {
		host.StorageOpt = map[string]string{"size": strconv.FormatInt(s.DiskBytes, 10)}
	}
	for _, m := range s.Mounts {
		host.Mounts = append(host.Mounts, readOnly(m.Host, m.Guest))
	}
	return cfg, host
}

func readOnly(from, to string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: from, Target: to, ReadOnly: true}
}

// checkStatic makes sure that the helper runs in any image: one linked against
// the host's libraries would not.
func checkStatic(helper string) error {
	f, err := elf.Open(helper)
	if err != nil {
		return fmt.Errorf("look at the helper: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("the docker sandbox needs a static turngate, and %s is linked dynamically; build it with `make build` (CGO_ENABLED=0)", helper)
		}
	}
	return nil
}
