package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"

	"github.com/turngate/turngate/schema"
)

// remains is a container, a network or a folder of a sandbox.
type remains struct {
	labels map[string]string
	remove func(ctx context.Context) error
}

// sweeper removes the remains of processes in the engine and on the disk.
type sweeper struct {
	engine  engine
	folders runFolders
}

// sweep removes the containers, networks and folders with these labels, except
// of rollouts for which keep returns true. It returns the number of sandboxes
// removed.
func (w sweeper) sweep(ctx context.Context, want map[string]string, keep func(schema.ID) bool) (int, error) {
	by := filters.NewArgs()
	for _, k := range sortedKeys(want) {
		by.Add("label", k+"="+want[k])
	}
	gone := map[string]bool{}
	// A network and a folder can be removed after the containers that have them.
	for _, list := range []func(context.Context, filters.Args) ([]remains, error){w.containers, w.networks, w.volumes} {
		all, err := list(ctx, by)
		if err != nil {
			return len(gone), err
		}
		for _, r := range all {
			if keep(schema.ID(r.labels[labelRollout])) {
				continue
			}
			if err := r.remove(ctx); err != nil {
				return len(gone), err
			}
			gone[r.labels[labelRollout]+"/"+r.labels[labelAttempt]] = true
		}
	}
	return len(gone), nil
}

func (w sweeper) containers(ctx context.Context, by filters.Args) (out []remains, err error) {
	all, err := w.engine.api.ContainerList(ctx, container.ListOptions{All: true, Filters: by})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range all {
		out = append(out, remains{c.Labels, func(ctx context.Context) error {
			if err := w.engine.removeContainer(ctx, c.ID); err != nil {
				return err
			}
			for _, name := range c.Names {
				w.folders.remove(strings.TrimPrefix(name, "/"))
			}
			return nil
		}})
	}
	return out, nil
}

func (w sweeper) networks(ctx context.Context, by filters.Args) (out []remains, err error) {
	all, err := w.engine.api.NetworkList(ctx, network.ListOptions{Filters: by})
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	for _, n := range all {
		out = append(out, remains{n.Labels, func(ctx context.Context) error { return w.engine.removeNetwork(ctx, n.ID, n.Name) }})
	}
	return out, nil
}

func (w sweeper) volumes(ctx context.Context, by filters.Args) (out []remains, err error) {
	all, err := w.engine.api.VolumeList(ctx, volume.ListOptions{Filters: by})
	if err != nil {
		return nil, fmt.Errorf("list folders: %w", err)
	}
	for _, v := range all.Volumes {
		out = append(out, remains{v.Labels, func(ctx context.Context) error { return w.engine.removeVolume(ctx, v.Name, v.Name) }})
	}
	return out, nil
}

func sortedKeys(m map[string]string) []string {
	return slices.Sorted(maps.Keys(m))
}
