// Package docker runs sandboxes as containers. They have no network unless
// requested, no new privileges, few capabilities and limits that the engine
// enforces. The box is the first process of each container.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes in the Docker engine that DOCKER_HOST names, or in
// the local one. The engine must run on this host because the box's socket and
// the helper are bind mounts.
type Backend struct {
	config  Config
	api     *client.Client
	engine  engine
	images  shared        // merges concurrent builds and pulls of one image
	pruning sync.Mutex    // held while images are removed
	copies  copies        // snapshots of this process
	built   chan struct{} // of capacity 1; has a value if the cache must be pruned
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
		Name: "docker", Images: true,
		Works: "the engine answers", Remedy: "start Docker, add this user to the docker group, build turngate with `make build`, or use --sandbox local",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) { return New(Config{Host: h}) },
	}
}

// New makes the backend. It does not contact the engine.
func New(c Config) (*Backend, error) {
	if c.Subnets == (netip.Prefix{}) {
		c.Subnets = netip.MustParsePrefix(sandboxes.DefaultSubnets)
	}
	c.Repo = cmp.Or(c.Repo, buildRepo)
	if err := checkSubnets(c.Subnets); err != nil {
		return nil, err
	}
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("set up the Docker client: %w", err)
	}
	return &Backend{config: c, api: api, built: make(chan struct{}, 1)}, nil
}

// Close closes the idle connections to the engine. The backend stays usable.
func (b *Backend) Close() { _ = b.api.Close() } // never fails

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

// Check implements sandboxes.Backend.
func (b *Backend) Check(ctx context.Context) error {
	if err := checkStatic(b.config.Helper); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := b.api.Ping(ctx); err != nil {
		return fmt.Errorf("reach the Docker engine: %w; start it, set DOCKER_HOST, or add this user to the docker group", err)
	}
	return nil
}

// Labels of every container.
const (
	labelOwner   = "turngate.owner"
	labelRollout = "turngate.rollout"
	labelAttempt = "turngate.attempt"
)

// maxReady bounds the wait for a box.
const maxReady = 10 * time.Minute

const runPath = "/.turngate/run"

// Create implements sandboxes.Backend.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (_ sandboxes.Sandbox, err error) {
	if err := refuse(s); err != nil {
		return nil, err
	}
	if err := checkStatic(b.config.Helper); err != nil {
		return nil, err
	}
	if err := b.fit(ctx, &s); err != nil {
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
	from, err := b.snapshotOf(&s)
	if err != nil {
		return nil, err
	}
	img, err := b.ensureImage(ctx, s.Image, owned(s.Build, s.Rollout), s.Log)
	if err != nil {
		return nil, err
	}
	images := make([]image.InspectResponse, len(s.Services))
	for i, sub := range s.Services {
		if images[i], err = b.ensureImage(ctx, sub.Spec.Image, owned(sub.Spec.Build, s.Rollout), s.Log); err != nil {
			return nil, fmt.Errorf("side-car %s: %w", sub.Name, err)
		}
	}
	g, err := b.openGroup(ctx, s, img.ID)
	if err != nil {
		return nil, err
	}
	sb := &sandbox{b: b, name: containerName(s), group: g, aliases: []string{schema.MainService}, from: from}
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
	case s.GPUs > 0:
		return sandboxes.GPUsUnsupported(s.GPUs)
	case s.Network != "" && s.Network != schema.NetworkNone && s.Network != schema.NetworkOpen:
		return &sandboxes.UnsupportedError{Field: "sandbox.network", Value: s.Network, Reason: "the docker sandbox has none and open"}
	case s.Image == "" && s.Build == nil:
		return &sandboxes.UnsupportedError{Field: "sandbox.image", Value: `""`, Reason: "the docker sandbox needs an image, or a task with environment/Dockerfile"}
	}
	return nil
}

func containerName(s sandboxes.Spec) string {
	return fmt.Sprintf("turngate-%s-%s-%s", s.Owner, s.Rollout, s.RunID())
}

// up makes and starts the container and connects to its box.
func (sb *sandbox) up(ctx context.Context, s sandboxes.Spec, img image.InspectResponse) (err error) {
	cfg := boxConfig(s, img)
	cfg.DiskSkip = sb.uncounted(s)
	if c := s.Container; sb.part || len(c.Entrypoint)+len(c.Command) > 0 {
		sb.argv = argv(c, img)
	}
	sb.health = health(img)
	sb.owner = s.Owner
	sb.open = s.Network == schema.NetworkOpen && !s.Container.Offline
	sb.online = sb.open
	if sb.folder, err = openRunFolder(filepath.Join(sb.b.config.StateDir, "docker", sb.name), cfg); err != nil {
		return err
	}
	imageID := img.ID
	if sb.from != nil {
		imageID = sb.from.image
	}
	if err := sb.b.create(ctx, sb, &s, imageID); err != nil {
		return sb.from.explain(err)
	}
	sb.base, sb.alone = img.ID, filesElsewhere(s, img)
	if err := sb.put(ctx, s.Files); err != nil {
		return err
	}
	if err := sb.checkPlaces(ctx, s); err != nil {
		return err
	}
	return sb.start(ctx, cfg, min(cmp.Or(s.Ready, 15*time.Second), maxReady))
}

func (b *Backend) create(ctx context.Context, sb *sandbox, s *sandboxes.Spec, imageID string) error {
	made := func(quota bool) (container.CreateResponse, error) {
		cfg, host := containerConfig(*s, imageID, b.config.Helper, sb.folder.dir)
		if quota {
			host.StorageOpt = map[string]string{"size": strconv.FormatInt(s.DiskBytes, 10)}
		}
		return b.createContainer(ctx, cfg, host, sb.settings(*s, cfg, host), sb.name)
	}
	created, err := b.createLimited(ctx, s, made)
	if errdefs.IsConflict(err) { // left by a process that died; its attempt is over
		if err := b.remove(ctx, sb.name); err != nil {
			return err
		}
		created, err = b.createLimited(ctx, s, made)
	}
	sb.id = created.ID // also of a container that is not wanted any more: Close removes it
	var no *sandboxes.UnsupportedError
	switch {
	case errors.As(err, &no):
		return no
	case errdefs.IsInvalidArgument(err):
		return &sandboxes.UnsupportedError{Field: "sandbox", Value: "a setting", Reason: "the Docker engine refuses it: " + err.Error()}
	case err != nil:
		return fmt.Errorf("create container %s: %w", sb.name, err)
	}
	return nil
}

const (
	removeTries = 5
	removePause = 300 * time.Millisecond
	removeLook  = 3 * time.Second
)

// remove removes a container and waits until it is gone. A missing container is
// no error.
func (b *Backend) remove(ctx context.Context, id string) error {
	gone, stop := b.wait(ctx, id, container.WaitConditionRemoved)
	defer stop()
	for try := 1; ; try++ {
		err := b.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
			break
		}
		// If a container ends while the engine kills it, the engine fails and does
		// not remove it either.
		if try == removeTries {
			return fmt.Errorf("remove container %s: %w", id, err)
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return fmt.Errorf("remove container %s: %w", id, errors.Join(err, context.Cause(ctx)))
		}
	}
	look := time.NewTicker(removeLook)
	defer look.Stop()
	for {
		select {
		case w := <-gone:
			if w.err != nil && !errdefs.IsNotFound(w.err) {
				return fmt.Errorf("wait for container %s to be removed: %w", id, w.err)
			}
			return nil
		case <-look.C: // the engine does not always report a removal to its waiters
			if _, err := b.api.ContainerInspect(ctx, id); errdefs.IsNotFound(err) {
				return nil
			}
		}
	}
}

// Sweep implements sandboxes.Backend.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	n, err := b.sweep(ctx, map[string]string{labelOwner: owner}, keep)
	return n, errors.Join(err, b.sweepSnapshots(ctx, owner), b.keepWithin(ctx))
}

// forget removes the box's folder of a container.
func (b *Backend) forget(name string) {
	_ = os.RemoveAll(filepath.Join(b.config.StateDir, "docker", filepath.Base(name)))
}

type sandbox struct {
	*box.Client
	b       *Backend
	name    string
	id      string
	folder  *runFolder
	group   *group   // nil: the sandbox has one container and no folders
	aliases []string // names on the group's network
	argv    []string
	health  *schema.Probe // of the image
	part    bool          // a side-car; it does not end the group
	open    bool          // made with the open network
	online  bool          // connected to the open network now
	owner   string        // see sandboxes.Spec
	from    *snapshot     // nil: the sandbox began with its image
	base    string        // id of its image, also if it began with a snapshot
	alone   string        // reason why a snapshot would lack files; empty: it has all

	mu     sync.Mutex
	closed bool
}

// start runs the container and connects to its box.
func (sb *sandbox) start(ctx context.Context, cfg *box.Config, ready time.Duration) error {
	ended, stop := sb.b.wait(context.WithoutCancel(ctx), sb.id, container.WaitConditionNextExit)
	defer stop()
	if err := sb.b.api.ContainerStart(ctx, sb.id, container.StartOptions{}); err != nil {
		return fmt.Errorf("start container %s: %w", sb.name, err)
	}
	ctx, cancel := box.Within(ctx, ready, fmt.Errorf("the box of container %s did not come up within %s", sb.name, ready))
	defer cancel()
	type met struct {
		client *box.Client
		err    error
	}
	meeting := make(chan met, 1)
	go func() {
		c, err := sb.folder.accept(ctx, cfg)
		meeting <- met{c, err}
	}()
	select {
	case m := <-meeting:
		if m.err != nil {
			return m.err
		}
		m.client.Explain(sb.whyLost)
		sb.Client = m.client
		return nil
	case w := <-ended:
		if w.err != nil {
			return fmt.Errorf("watch container %s: %w", sb.name, w.err)
		}
		return fmt.Errorf("the box of container %s ended with status %d before it spoke", sb.name, w.status)
	}
}

// Argv implements sandboxes.Sandbox.
func (sb *sandbox) Argv() []string { return sb.argv }

// Health implements sandboxes.Sandbox.
func (sb *sandbox) Health() *schema.Probe { return sb.health }

// Service implements sandboxes.Sandbox.
func (sb *sandbox) Service(name string) (sandboxes.Sandbox, error) {
	if sb.group == nil || sb.part || sb.group.services[name] == nil {
		return nil, sandboxes.NoService(name)
	}
	return sb.group.services[name], nil
}

// all returns the containers of the sandbox.
func (sb *sandbox) all() []*sandbox {
	out := []*sandbox{sb}
	if sb.group != nil && !sb.part {
		out = slices.AppendSeq(out, maps.Values(sb.group.services))
	}
	return out
}

// Online implements sandboxes.Sandbox.
func (sb *sandbox) Online(ctx context.Context, on bool) error {
	switch {
	case !sb.open:
		return sandboxes.NotOnline()
	case sb.group != nil && sb.group.network != "":
		return &sandboxes.UnsupportedError{Field: "sandbox.network", Value: schema.NetworkOpen, Reason: "with side-cars every phase has the same network"}
	case on == sb.online:
		return nil
	}
	var err error
	if on {
		err = sb.b.api.NetworkConnect(ctx, theBridge, sb.id, nil)
	} else {
		err = sb.b.api.NetworkDisconnect(ctx, theBridge, sb.id, true)
	}
	if err != nil {
		return fmt.Errorf("change the network of container %s: %w", sb.name, err)
	}
	sb.online = on
	return nil
}

// Freeze implements sandboxes.Sandbox.
func (sb *sandbox) Freeze(ctx context.Context) error {
	var errs []error
	for _, c := range sb.all() {
		if err := sb.b.api.ContainerPause(ctx, c.id); err != nil {
			errs = append(errs, fmt.Errorf("freeze container %s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}

// Thaw implements sandboxes.Sandbox.
func (sb *sandbox) Thaw(ctx context.Context) error {
	var errs []error
	for _, c := range sb.all() {
		if err := sb.b.api.ContainerUnpause(ctx, c.id); err != nil {
			errs = append(errs, fmt.Errorf("thaw container %s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}

// Close implements sandboxes.Sandbox.
func (sb *sandbox) Close(ctx context.Context) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.closed {
		return nil
	}
	if sb.Client != nil {
		sb.Disconnect()
	}
	if sb.id != "" {
		if err := sb.b.remove(ctx, sb.id); err != nil {
			return err
		}
	}
	if sb.folder != nil {
		sb.folder.close()
	}
	if sb.group != nil && !sb.part {
		if err := sb.group.closeServices(ctx); err != nil {
			return err
		}
		if err := sb.group.close(ctx); err != nil {
			return err
		}
	}
	sb.closed = true
	return nil
}
