package docker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"

	"github.com/turngate/turngate/internal/backends/layout"
	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// maxReady bounds the wait for a box.
const maxReady = 10 * time.Minute

// sandbox is a container with a box, and its group.
type sandbox struct {
	*box.Client
	b         *Backend
	delivery  delivery
	container *instance
	meeting   meeting  // nil before up
	group     *group   // nil: the sandbox has one container and no folders
	aliases   []string // names on the group's network; the first is that of its service
	argv      []string
	health    *schema.Probe // of the image
	part      bool          // a side-car; it does not end the group
	open      bool          // made with the open network
	online    bool          // connected to the open network now
	owner     string        // see sandboxes.Spec
	from      *snapshot     // nil: the sandbox began with its image
	base      string        // id of its image, also if it began with a snapshot
	alone     string        // reason why a snapshot would lack files; empty: it has all

	mu     sync.Mutex
	closed bool
}

// up makes the container, starts it and connects to its box.
func (sb *sandbox) up(ctx context.Context, s sandboxes.Spec, img image.InspectResponse) (err error) {
	cfg := boxConfig(s, img)
	cfg.DiskSkip = sb.group.uncounted(sb.aliases[0], s)
	if c := s.Container; sb.part || len(c.Entrypoint)+len(c.Command) > 0 {
		sb.argv = argv(c, img)
	}
	sb.health = layout.Probe(img.Config)
	sb.owner, sb.base, sb.alone = s.Owner, img.ID, filesElsewhere(s, img)
	sb.open = s.Network == schema.NetworkOpen && !s.Container.Offline
	sb.online = sb.open
	mounts, err := sb.delivery.mounts(s.Mounts)
	if err != nil {
		return err
	}
	if sb.meeting, err = sb.delivery.open(sb.container.name, cfg); err != nil {
		return err
	}
	imageID := img.ID
	if sb.from != nil {
		imageID = sb.from.image
	}
	err = sb.container.create(ctx, sb.b.limits, &s, func() settings { return sb.configure(s, imageID, mounts) })
	if err != nil {
		return sb.from.explain(err)
	}
	if err := sb.delivery.bring(ctx, sb.container, imageID, &s); err != nil {
		return err
	}
	if err := sb.container.put(ctx, s.Files); err != nil {
		return err
	}
	if err := checkPlaces(ctx, sb.container, s); err != nil {
		return err
	}
	client, err := sb.container.start(ctx, sb.meeting, cfg, min(cmp.Or(s.Ready, 15*time.Second), maxReady))
	if err != nil {
		return err
	}
	client.Explain(func() error { return whyLost(sb.b.engine.api, sb.container.id, sb.b.config.Docker.Runtime != "") }) //nolint:contextcheck // it is asked after this context has ended
	sb.Client = client
	return nil
}

// configure returns the engine's settings of the container.
func (sb *sandbox) configure(s sandboxes.Spec, imageID string, mounts []mount.Mount) settings {
	cfg, host := containerConfig(s, imageID, slices.Clone(mounts))
	sb.meeting.join(cfg, host)
	addOptions(sb.b.config.Docker, s.GPUs, host)
	if sb.part && s.Container.Hostname == "" {
		cfg.Hostname = sb.aliases[0]
	}
	addSettings(s.Container, cfg, host)
	return settings{cfg, host, sb.group.join(s, sb.aliases, host)}
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
func (sb *sandbox) all() []*instance {
	out := []*instance{sb.container}
	if sb.group != nil && !sb.part {
		for service := range maps.Values(sb.group.services) {
			out = append(out, service.container)
		}
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
	if err := sb.container.connect(ctx, on); err != nil {
		return err
	}
	sb.online = on
	return nil
}

// Freeze implements sandboxes.Sandbox.
func (sb *sandbox) Freeze(ctx context.Context) error {
	var errs []error
	for _, c := range sb.all() {
		errs = append(errs, c.freeze(ctx))
	}
	return errors.Join(errs...)
}

// Thaw implements sandboxes.Sandbox.
func (sb *sandbox) Thaw(ctx context.Context) error {
	var errs []error
	for _, c := range sb.all() {
		errs = append(errs, c.thaw(ctx))
	}
	return errors.Join(errs...)
}

// CanSnapshot implements sandboxes.Sandbox.
func (sb *sandbox) CanSnapshot() error {
	switch {
	case sb.part:
		return sandboxes.NoSnapshots("a side-car is part of another sandbox")
	case sb.alone != "":
		return sandboxes.NoSnapshots(sb.alone)
	case sb.b.snapshots.blind.Load():
		return sandboxes.NoSnapshots(blindEngine)
	}
	return nil
}

// Snapshot implements sandboxes.Sandbox. It does not pause the container.
func (sb *sandbox) Snapshot(ctx context.Context, maxBytes int64) (sandboxes.Snapshot, error) {
	if err := sb.CanSnapshot(); err != nil {
		return nil, err
	}
	if err := sb.b.snapshots.check(ctx, sb.container, sb.Files()); err != nil {
		return nil, err
	}
	made, err := sb.b.snapshots.take(ctx, sb.container, map[string]string{labelSnapshot: sb.owner, labelBase: sb.base}, maxBytes)
	if err != nil {
		return nil, err // without made: its nil pointer would make a Snapshot that is not nil
	}
	return made, nil
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
	err := sb.container.remove(ctx)
	if err == nil && sb.meeting != nil {
		sb.meeting.close()
	}
	if sb.group != nil && !sb.part {
		err = errors.Join(err, sb.group.closeServices(ctx)) // a box ends when it loses its worker, with and without its engine
	}
	if err != nil {
		return err
	}
	if sb.group != nil && !sb.part {
		if err := sb.group.close(ctx); err != nil {
			return err
		}
	}
	sb.closed = true
	return nil
}
