package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
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

// sweep removes the containers, networks and folders with these labels, except
// of rollouts for which keep returns true. It returns the number of sandboxes
// removed.
func (b *Backend) sweep(ctx context.Context, want map[string]string, keep func(schema.ID) bool) (int, error) {
	by := filters.NewArgs()
	for _, k := range sortedKeys(want) {
		by.Add("label", k+"="+want[k])
	}
	gone := map[string]bool{}
	// A network and a folder can be removed after the containers that have them.
	for _, list := range []func(context.Context, filters.Args) ([]remains, error){b.containers, b.networks, b.volumes} {
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

func (b *Backend) containers(ctx context.Context, by filters.Args) (out []remains, err error) {
	all, err := b.api.ContainerList(ctx, container.ListOptions{All: true, Filters: by})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range all {
		out = append(out, remains{c.Labels, func(ctx context.Context) error {
			if err := b.remove(ctx, c.ID); err != nil {
				return err
			}
			for _, name := range c.Names {
				b.forget(strings.TrimPrefix(name, "/"))
			}
			return nil
		}})
	}
	return out, nil
}

func (b *Backend) networks(ctx context.Context, by filters.Args) (out []remains, err error) {
	all, err := b.api.NetworkList(ctx, network.ListOptions{Filters: by})
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	for _, n := range all {
		out = append(out, remains{n.Labels, func(ctx context.Context) error { return b.removeNetwork(ctx, n.ID, n.Name) }})
	}
	return out, nil
}

func (b *Backend) volumes(ctx context.Context, by filters.Args) (out []remains, err error) {
	all, err := b.api.VolumeList(ctx, volume.ListOptions{Filters: by})
	if err != nil {
		return nil, fmt.Errorf("list folders: %w", err)
	}
	for _, v := range all.Volumes {
		out = append(out, remains{v.Labels, func(ctx context.Context) error { return b.removeVolume(ctx, v.Name, v.Name) }})
	}
	return out, nil
}

// removeNetwork removes a network, which may be gone already.
func (b *Backend) removeNetwork(ctx context.Context, id, name string) error {
	if err := b.api.NetworkRemove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	return nil
}

// removeVolume removes the volume of a folder, which may be gone already.
func (b *Backend) removeVolume(ctx context.Context, id, folder string) error {
	if err := b.api.VolumeRemove(ctx, id, true); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove folder %s: %w", folder, err)
	}
	return nil
}

func sortedKeys(m map[string]string) []string {
	return slices.Sorted(maps.Keys(m))
}
