// Package docker runs sandboxes as containers. They have no network unless
// requested, no new privileges, few capabilities and limits that the engine
// enforces. The box is the first process of each container.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/docker/docker/api/types/image"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes in the Docker engine that DOCKER_HOST names, or in
// the local one.
type Backend struct {
	config     Config
	engine     engine      // makes and removes containers
	deliveries *deliveries // has the way of files and of boxes
	store      *Store      // of images
	limits     *limits     // that the engine can enforce
	networks   networks    // of sandboxes with side-cars
	snapshots  *snapshots
	sweeper    sweeper // removes what earlier processes left
}

// Config configures the backend. The Helper of its Host must be static.
type Config struct {
	sandboxes.Host
	// Repo is the repository of the images that builds leave; default
	// turngate-build. Backends with different ones neither share nor remove each
	// other's images.
	Repo string
}

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "docker", Images: true, Builds: true,
		Works: "the engine answers", Remedy: "start Docker, add this user to the docker group, build turngate with `make build`, or use --sandbox local",
		Asked: func(h sandboxes.Host) bool {
			return h.Docker.Runtime != "" || h.Docker.MostGPUs() > 0 || len(h.Docker.Mounts) > 0
		},
		New: func(h sandboxes.Host) (sandboxes.Backend, error) { return New(Config{Host: h}) },
	}
}

// New makes the backend. It does not contact the engine.
func New(c Config) (*Backend, error) {
	if c.Subnets == (netip.Prefix{}) {
		c.Subnets = netip.MustParsePrefix(sandboxes.DefaultSubnets)
	}
	c.Repo = cmp.Or(c.Repo, sandboxes.BuildRepo)
	if err := checkSubnets(c.Subnets); err != nil {
		return nil, err
	}
	api, err := newClient()
	if err != nil {
		return nil, fmt.Errorf("set up the Docker client: %w", err)
	}
	e, folders, copies := engine{api}, runFolders(filepath.Join(c.StateDir, "docker")), &snapshots{api: api}
	return &Backend{
		config: c, engine: e, deliveries: &deliveries{engine: e, config: c, folders: folders}, snapshots: copies,
		store:    newStore(api, c, copies),
		limits:   &limits{api: api},
		networks: networks{api: api, all: c.Subnets},
		sweeper:  sweeper{engine: e, folders: folders},
	}, nil
}

// Close closes the idle connections to the engine. The backend stays usable.
func (b *Backend) Close() { _ = b.engine.api.Close() } // never fails

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

// Check implements sandboxes.Backend.
func (b *Backend) Check(ctx context.Context) error {
	if err := checkStatic(b.config.Helper); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := b.engine.api.Ping(ctx); err != nil {
		return fmt.Errorf("reach the Docker engine: %w; start it, set DOCKER_HOST, or add this user to the docker group", err)
	}
	d, err := b.deliveries.get(ctx)
	if err != nil {
		return err
	}
	if err := d.check(b.config.Docker); err != nil {
		return err
	}
	return checkRuntime(ctx, b.engine.api, b.config.Docker.Runtime)
}

// Create implements sandboxes.Backend.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (_ sandboxes.Sandbox, err error) {
	if err := refuse(s); err != nil {
		return nil, err
	}
	if err := refuseGPUs(b.config.Docker, s.GPUs); err != nil {
		return nil, err
	}
	if err := checkStatic(b.config.Helper); err != nil {
		return nil, err
	}
	d, err := b.deliveries.get(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.check(b.config.Docker); err != nil {
		return nil, err
	}
	s.Mounts = slices.Concat(s.Mounts, b.config.Docker.Mounts)
	if err := b.limits.fit(ctx, &s); err != nil {
		return nil, err
	}
	if len(s.Services) > 0 {
		// One default for all containers together.
		s.Pids, s.DiskBytes = cmp.Or(s.Pids, sandboxes.DefaultPids), cmp.Or(s.DiskBytes, sandboxes.DefaultDiskBytes)
	}
	if s, err = s.Shares(); err != nil {
		return nil, err
	}
	fitShares(&s)
	from, err := b.snapshots.of(&s)
	if err != nil {
		return nil, err
	}
	img, err := b.store.ensure(ctx, s.Image, owned(s.Build, s.Rollout), s.Log)
	if err != nil {
		return nil, err
	}
	images := make([]image.InspectResponse, len(s.Services))
	for i, sub := range s.Services {
		if images[i], err = b.store.ensure(ctx, sub.Spec.Image, owned(sub.Spec.Build, s.Rollout), s.Log); err != nil {
			return nil, fmt.Errorf("side-car %s: %w", sub.Name, err)
		}
	}
	g, err := openGroup(ctx, b, d, s, img.ID)
	if err != nil {
		return nil, err
	}
	sb := &sandbox{b: b, delivery: d, container: &instance{engine: b.engine, name: containerName(s)}, group: g, aliases: []string{schema.MainService}, from: from}
	defer func() {
		if err != nil {
			err = errors.Join(err, sb.Close(context.WithoutCancel(ctx)))
		}
	}()
	if g != nil {
		if err := g.openServices(ctx, s, images); err != nil {
			return nil, err
		}
	}
	return sb, sb.up(ctx, s, img)
}

// Sweep implements sandboxes.Backend.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	d, err := b.deliveries.get(ctx)
	if err != nil {
		return 0, err
	}
	n, err := b.sweeper.sweep(ctx, map[string]string{labelOwner: owner}, keep)
	return n, errors.Join(err, b.snapshots.sweep(ctx, owner), b.store.built.keepWithin(ctx), d.sweep(ctx))
}

// Images implements sandboxes.ImageStore. A rollout with one of the images needs no
// pull.
func (b *Backend) Images(ctx context.Context) ([]string, error) { return b.store.Images(ctx) }

// HasImage implements sandboxes.ImageStore.
func (b *Backend) HasImage(ctx context.Context, ref string) error { return b.store.HasImage(ctx, ref) }

// KeepCache implements sandboxes.CacheKeeper.
func (b *Backend) KeepCache(ctx context.Context, failed func(error)) { b.store.cache.keep(ctx, failed) }

// Store returns the images of the engine.
func (b *Backend) Store() *Store { return b.store }

// Labels of every container.
const (
	labelOwner   = "turngate.owner"
	labelRollout = "turngate.rollout"
	labelAttempt = "turngate.attempt"
)

// owned returns the build with the trainer of a rollout.
func owned(how *sandboxes.Build, r schema.ID) *sandboxes.Build {
	if how == nil {
		return nil
	}
	out := *how
	out.Trainer = r.Trainer()
	return &out
}

func refuse(s sandboxes.Spec) error {
	switch {
	case s.Network != "" && s.Network != schema.NetworkNone && s.Network != schema.NetworkOpen:
		return &sandboxes.UnsupportedError{Field: "sandbox.network", Value: s.Network, Reason: "the docker sandbox has none and open"}
	case s.Image == "" && s.Build == nil:
		return &sandboxes.UnsupportedError{Field: "sandbox.image", Value: `""`, Reason: "the docker sandbox needs an image (--image, or docker_image or environment/Dockerfile of the task)"}
	}
	return nil
}

func containerName(s sandboxes.Spec) string {
	return fmt.Sprintf("turngate-%s-%s-%s", s.Owner, s.Rollout, s.RunID())
}
