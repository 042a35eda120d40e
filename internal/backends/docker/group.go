package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// group has the shared resources of the containers of one sandbox: a network
// and folders. A sandbox of one container without folders has no group.
type group struct {
	b        *Backend
	delivery delivery
	name     string
	labels   map[string]string
	network  string            // empty: none
	volumes  map[string]string // by name of the folder
	services map[string]*sandbox
	counts   map[string]string // by name of the folder: its files count towards the disk limit of this service
}

// counts assigns each folder to the first container that can write to it. So a
// file in a folder counts towards the limit of one container only.
func counts(s sandboxes.Spec) map[string]string {
	out := map[string]string{}
	add := func(service string, c schema.Container) {
		for _, m := range c.Mounts {
			if _, ok := out[m.Folder]; !ok && !m.ReadOnly {
				out[m.Folder] = service
			}
		}
	}
	add(schema.MainService, s.Container)
	for _, sub := range s.Services {
		add(sub.Name, sub.Spec.Container)
	}
	return out
}

// uncounted returns the places of the folders that count towards the limit of
// another container than that of the service.
func (g *group) uncounted(service string, s sandboxes.Spec) []string {
	if g == nil {
		return nil
	}
	var out []string
	for _, m := range s.Container.Mounts {
		if g.counts[m.Folder] != service {
			out = append(out, path.Clean(m.Path))
		}
	}
	return out
}

func labels(s sandboxes.Spec) map[string]string {
	return map[string]string{labelOwner: s.Owner, labelRollout: string(s.Rollout), labelAttempt: s.RunID()}
}

// openGroup makes the shared resources of the containers of s. It first removes
// remains of the same attempt from an earlier process.
func openGroup(ctx context.Context, b *Backend, d delivery, s sandboxes.Spec, imageID string) (_ *group, err error) {
	if len(s.Services) == 0 && len(s.Folders) == 0 {
		return nil, nil
	}
	g := &group{b: b, delivery: d, name: containerName(s), labels: labels(s), volumes: map[string]string{}, services: map[string]*sandbox{}, counts: counts(s)}
	if err := g.clear(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close(context.WithoutCancel(ctx)))
		}
	}()
	if len(s.Services) > 0 {
		g.network = g.name
		if err := b.networks.open(ctx, g.name, g.labels, s.Network == schema.NetworkOpen); err != nil {
			return nil, err
		}
	}
	for _, f := range s.Folders {
		name := g.name + "-" + f.Name
		g.volumes[f.Name] = name // before it exists: a request that is cancelled may still make it
		if _, err := b.engine.api.VolumeCreate(ctx, volume.CreateOptions{Name: name, Labels: g.labels}); err != nil {
			return nil, fmt.Errorf("make folder %s: %w", f.Name, err)
		}
	}
	return g, g.fill(ctx, s.Folders, imageID)
}

// fill puts the initial content into folders through a container that never
// runs.
func (g *group) fill(ctx context.Context, folders []sandboxes.Folder, imageID string) (err error) {
	host := &container.HostConfig{NetworkMode: "none"}
	for _, f := range folders {
		if !f.Seed {
			host.Mounts = append(host.Mounts, g.mount(schema.Mount{Folder: f.Name, Path: fillPath + f.Name}, false))
		}
	}
	if len(host.Mounts) == 0 {
		return nil
	}
	made, err := g.b.engine.createContainer(ctx, &container.Config{Image: imageID, Labels: g.labels, Entrypoint: []string{"none"}}, host, nil, g.name+"-folders")
	if made.ID != "" {
		defer func() {
			err = errors.Join(err, g.b.engine.removeContainer(context.WithoutCancel(ctx), made.ID))
		}()
	}
	if err != nil {
		return fmt.Errorf("fill the folders: %w", err)
	}
	for _, f := range folders {
		if f.Seed {
			continue
		}
		if err := g.b.engine.api.CopyToContainer(ctx, made.ID, path.Dir(fillPath), openFolder(f.Name), container.CopyToContainerOptions{}); err != nil {
			return fmt.Errorf("open folder %s: %w", f.Name, err)
		}
		if f.Tar == nil {
			continue
		}
		if err := g.b.engine.api.CopyToContainer(ctx, made.ID, fillPath+f.Name, io.NewSectionReader(f.Tar, 0, f.Tar.Size()), container.CopyToContainerOptions{}); err != nil {
			return fmt.Errorf("fill folder %s: %w", f.Name, err)
		}
	}
	return nil
}

const fillPath = "/.turngate/fill/"

// openFolder returns an archive that makes the folder writable for every user
// of a container, as folders on the task author's own disk would be.
func openFolder(name string) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o777}) // a write into memory cannot fail
	_ = w.Close()
	return &b
}

// mount returns the mount of a folder of the group.
func (g *group) mount(m schema.Mount, seed bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: g.volumes[m.Folder], Target: m.Path, ReadOnly: m.ReadOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: !seed},
	}
}

// join adds the folders and the network of the group to a container's settings.
func (g *group) join(s sandboxes.Spec, aliases []string, host *container.HostConfig) *network.NetworkingConfig {
	if g == nil {
		return nil
	}
	for _, m := range s.Container.Mounts {
		seed := slices.ContainsFunc(s.Folders, func(f sandboxes.Folder) bool { return f.Name == m.Folder && f.Seed })
		host.Mounts = append(host.Mounts, g.mount(m, seed))
	}
	if s.Container.Offline || g.network == "" {
		return nil
	}
	host.NetworkMode = container.NetworkMode(g.network)
	if s.Network != schema.NetworkOpen {
		// Names unknown to this network must not reach an outside name server,
		// which would be a way out.
		host.DNS, host.DNSOptions = []string{"127.0.0.1"}, []string{"timeout:1", "attempts:2"}
	}
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{g.network: {Aliases: aliases}}}
}

// openServices starts the containers of all side-cars concurrently. The caller
// starts their commands.
func (g *group) openServices(ctx context.Context, s sandboxes.Spec, images []image.InspectResponse) error {
	var starts []func() error
	for i := range s.Services {
		sub := s.Services[i]
		spec := sub.Spec
		spec.Owner, spec.Rollout, spec.Attempt, spec.Part, spec.Network = s.Owner, s.Rollout, s.Attempt, s.Part, s.Network
		spec.Ready, spec.Life, spec.Lost, spec.Folders = s.Ready, s.Life, s.Lost, s.Folders
		if spec.Workdir == "" && (images[i].Config == nil || images[i].Config.WorkingDir == "") {
			spec.Workdir = "/"
		}
		sb := &sandbox{b: g.b, delivery: g.delivery, container: &instance{engine: g.b.engine, name: g.name + "-" + sub.Name}, group: g, aliases: append([]string{sub.Name}, sub.Aliases...), part: true}
		g.services[sub.Name] = sb
		starts = append(starts, func() error {
			if err := sb.up(ctx, spec, images[i]); err != nil {
				return fmt.Errorf("side-car %s: %w", sub.Name, err)
			}
			return nil
		})
	}
	return together(starts)
}

// closeServices ends the side-cars.
func (g *group) closeServices(ctx context.Context) error {
	var ends []func() error
	for _, sb := range g.services {
		ends = append(ends, func() error { return sb.Close(ctx) })
	}
	return together(ends)
}

// together calls functions concurrently and joins their errors.
func together(list []func() error) error {
	var all sync.WaitGroup
	errs := make([]error, len(list))
	for i, do := range list {
		all.Go(func() { errs[i] = do() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// close removes the shared resources. The containers must be gone.
func (g *group) close(ctx context.Context) error {
	if g.network != "" {
		if err := g.b.engine.removeNetwork(ctx, g.network, g.network); err != nil {
			return err
		}
		g.network = ""
	}
	for folder, name := range g.volumes {
		if err := g.b.engine.removeVolume(ctx, name, folder); err != nil {
			return err
		}
		delete(g.volumes, folder)
	}
	return nil
}

// clear removes everything with the group's labels.
func (g *group) clear(ctx context.Context) error {
	_, err := g.b.sweeper.sweep(ctx, g.labels, func(schema.ID) bool { return false })
	return err
}
