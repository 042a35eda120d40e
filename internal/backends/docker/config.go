package docker

import (
	"cmp"
	"crypto/rand"
	"debug/elf"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// boxConfig returns the configuration of the box. The image's variables come
// first, so that the task's variables override them.
func boxConfig(s sandboxes.Spec, img image.InspectResponse) *box.Config {
	c := &box.Config{
		Secret: make([]byte, 32),
		LifeMS: cmp.Or(s.Life, 24*time.Hour).Milliseconds(), LostMS: cmp.Or(s.Lost, 5*time.Minute).Milliseconds(),
		User: s.User, Workdir: s.Workdir, DiskBytes: cmp.Or(s.DiskBytes, sandboxes.DefaultDiskBytes),
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

// theBridge is the engine's default network, which has access to the outside.
const theBridge = "bridge"

// containerConfig returns the engine's settings of the container, without the settings of its
// box's meeting. They contain no secret.
func containerConfig(s sandboxes.Spec, imageID string, mounts []mount.Mount) (*container.Config, *container.HostConfig) {
	cfg := &container.Config{
		Image:       imageID,
		Cmd:         []string{},
		User:        "0:0",
		WorkingDir:  "/",
		Hostname:    "sandbox",
		Labels:      labels(s),
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	pids := cmp.Or(s.Pids, sandboxes.DefaultPids) + box.Threads
	noInit := false
	host := &container.HostConfig{
		NetworkMode: "none",
		AutoRemove:  true, // the engine removes the container of a box that ended without its worker
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
		Mounts: mounts,
	}
	if s.Network == schema.NetworkOpen {
		host.NetworkMode = theBridge
	}
	return cfg, host
}

// checkStatic returns an error if the helper is linked dynamically: it must run
// in any image.
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
