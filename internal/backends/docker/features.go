package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
)

// Describe implements sandboxes.Engine.
func (b *Backend) Describe(ctx context.Context) (engine string, lacks []string, err error) {
	info, err := b.engine.api.Info(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("describe the Docker engine: %w", err)
	}
	version, err := b.engine.api.ServerVersion(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("describe the Docker engine: %w", err)
	}
	buildKit, err := hasBuildKit(ctx, b.engine.api)
	if err != nil {
		return "", nil, err
	}
	d, err := b.deliveries.get(ctx)
	if err != nil {
		return "", nil, err
	}
	engine, lacks = describe(&info, &version, buildKit)
	return engine, append(d.lacks(), lacks...), nil
}

// describe names an engine, and the features that turngate uses and the engine lacks.
func describe(info *system.Info, version *types.Version, buildKit bool) (engine string, lacks []string) {
	podman := slices.ContainsFunc(version.Components, func(c types.ComponentVersion) bool { return strings.HasPrefix(c.Name, "Podman") })
	rootless := slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.HasPrefix(o, "name=rootless") })
	engine = "Docker"
	if podman {
		engine = "Podman"
	}
	engine += " " + info.ServerVersion + ", cgroup v" + info.CgroupVersion
	if rootless {
		engine += ", rootless"
	}
	for _, l := range []struct {
		limit, flag string
		there       bool
	}{{"cpus", "--cpus", info.CPUCfsQuota}, {"memory", "--memory", info.MemoryLimit}, {"processes", "--pids", info.PidsLimit}} {
		if !l.there {
			lacks = append(lacks, fmt.Sprintf("no limit of %s: tasks run without it, and %s is refused", l.limit, l.flag))
		}
	}
	if rootless && info.CgroupVersion == "1" {
		lacks = append(lacks, "a rootless engine limits nothing with cgroup v1: it needs a host with cgroup v2 and systemd")
	}
	if !buildKit {
		lacks = append(lacks, "no BuildKit: Dockerfiles with heredocs, COPY --chmod, --link or RUN --mount are refused")
	}
	if podman {
		lacks = append(lacks, "turngate's tests do not cover Podman")
	}
	if rootless {
		lacks = append(lacks, "turngate's tests do not cover rootless engines")
	}
	return engine, lacks
}
