// Package docker runs sandboxes as containers: no network unless asked, no
// new privileges, few capabilities, limits enforced by the engine, and the box
// as the container's first process.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
	"golang.org/x/sync/singleflight"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/box"
	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes in the Docker engine that DOCKER_HOST names, or the
// local one. The engine must run on this host: the box's socket and the
// helper are bind mounts.
type Backend struct {
	helper   string
	stateDir string
	api      *client.Client
	images   singleflight.Group // one build or pull of an image at a time
}

// New opens the backend. helper is this binary; it is shown in every
// container, so it must be static. Nothing is contacted yet.
func New(helper, stateDir string) (*Backend, error) {
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("set up the Docker client: %w", err)
	}
	return &Backend{helper: helper, stateDir: stateDir, api: api}, nil
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return "docker" }

// Check implements sandboxes.Backend.
func (b *Backend) Check(ctx context.Context) error {
	if err := checkStatic(b.helper); err != nil {
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

const (
	runPath = "/.turngate/run"
	// defaultPids keeps a fork bomb from the host when a task names no limit.
	defaultPids = 4096
)

// Create implements sandboxes.Backend.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (_ sandboxes.Sandbox, err error) {
	if err := refuse(s); err != nil {
		return nil, err
	}
	if err := checkStatic(b.helper); err != nil {
		return nil, err
	}
	img, err := b.image(ctx, s)
	if err != nil {
		return nil, err
	}
	name := containerName(s)
	sb := &sandbox{b: b, name: name}
	defer func() {
		if err != nil {
			err = errors.Join(err, sb.Close(context.WithoutCancel(ctx)))
		}
	}()
	cfg := boxConfig(s, img)
	if sb.door, err = openDoor(filepath.Join(b.stateDir, "docker", name), cfg); err != nil {
		return nil, err
	}
	if err := b.create(ctx, sb, s, img.ID); err != nil {
		return nil, err
	}
	return sb, sb.start(ctx, cfg, cmp.Or(s.Ready, 15*time.Second))
}

func refuse(s sandboxes.Spec) error {
	switch {
	case s.GPUs > 0:
		return sandboxes.GPUsUnsupported(s.GPUs)
	case s.Network == schema.NetworkAllowlist:
		return &sandboxes.UnsupportedError{Field: "sandbox.network", Value: s.Network, Reason: "the docker sandbox offers none and open"}
	case s.Image == "" && len(s.BuildTar) == 0:
		return &sandboxes.UnsupportedError{Field: "sandbox.image", Value: `""`, Reason: "the docker sandbox needs an image, or a task with environment/Dockerfile"}
	}
	return nil
}

func containerName(s sandboxes.Spec) string {
	return fmt.Sprintf("turngate-%s-%s-%d", s.Owner, s.Rollout, s.Attempt)
}

func (b *Backend) create(ctx context.Context, sb *sandbox, s sandboxes.Spec, imageID string) error {
	cfg, host := containerConfig(s, imageID, b.helper, sb.door.dir)
	created, err := b.api.ContainerCreate(ctx, cfg, host, nil, nil, sb.name)
	if errdefs.IsConflict(err) { // of a process that died; its attempt is over
		if err := b.remove(ctx, sb.name); err != nil {
			return err
		}
		created, err = b.api.ContainerCreate(ctx, cfg, host, nil, nil, sb.name)
	}
	if err != nil && s.DiskBytes > 0 && !errdefs.IsNotFound(err) && ctx.Err() == nil {
		return &sandboxes.UnsupportedError{Field: "sandbox.disk_bytes", Value: fmt.Sprint(s.DiskBytes), Reason: fmt.Sprintf(
			"this Docker engine cannot limit a container's disk (%v); use the local sandbox, or ask without this limit", err)}
	}
	if err != nil {
		return fmt.Errorf("create container %s: %w", sb.name, err)
	}
	sb.id = created.ID
	return nil
}

const (
	removeTries = 5
	removePause = 300 * time.Millisecond
)

// remove removes a container and waits until it is gone; one that is not there
// is no error.
func (b *Backend) remove(ctx context.Context, id string) error {
	gone, failed := b.api.ContainerWait(ctx, id, container.WaitConditionRemoved)
	for try := 1; ; try++ {
		err := b.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
			break
		}
		// The engine fails to kill a container that ends at this very moment, and
		// then does not remove it either.
		if try == removeTries {
			return fmt.Errorf("remove container %s: %w", id, err)
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return fmt.Errorf("remove container %s: %w", id, errors.Join(err, context.Cause(ctx)))
		}
	}
	select {
	case <-gone:
		return nil
	case err := <-failed:
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("wait for container %s to be removed: %w", id, err)
	}
}

// Sweep implements sandboxes.Backend.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	list, err := b.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", labelOwner+"="+owner))})
	if err != nil {
		return 0, fmt.Errorf("list containers: %w", err)
	}
	n := 0
	for _, c := range list {
		if keep(schema.ID(c.Labels[labelRollout])) {
			continue
		}
		if err := b.remove(ctx, c.ID); err != nil {
			return n, err
		}
		for _, name := range c.Names {
			_ = os.RemoveAll(filepath.Join(b.stateDir, "docker", filepath.Base(name)))
		}
		n++
	}
	return n, nil
}

type sandbox struct {
	*box.Client
	b    *Backend
	name string
	id   string
	door *door

	mu     sync.Mutex
	closed bool
}

// start runs the container and meets its box.
func (sb *sandbox) start(ctx context.Context, cfg *box.Config, ready time.Duration) error {
	ended, failed := sb.b.api.ContainerWait(context.WithoutCancel(ctx), sb.id, container.WaitConditionNextExit)
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
		c, err := sb.door.meet(ctx, cfg)
		meeting <- met{c, err}
	}()
	select {
	case m := <-meeting:
		if m.err != nil {
			return m.err
		}
		sb.Client = m.client
		return nil
	case status := <-ended:
		return fmt.Errorf("the box of container %s ended with status %d before it spoke", sb.name, status.StatusCode)
	case err := <-failed:
		return fmt.Errorf("watch container %s: %w", sb.name, err)
	}
}

// Freeze implements sandboxes.Sandbox.
func (sb *sandbox) Freeze(ctx context.Context) error {
	if err := sb.b.api.ContainerPause(ctx, sb.id); err != nil {
		return fmt.Errorf("freeze container %s: %w", sb.name, err)
	}
	return nil
}

// Thaw implements sandboxes.Sandbox.
func (sb *sandbox) Thaw(ctx context.Context) error {
	if err := sb.b.api.ContainerUnpause(ctx, sb.id); err != nil {
		return fmt.Errorf("thaw container %s: %w", sb.name, err)
	}
	return nil
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
	if sb.door != nil {
		sb.door.close()
	}
	sb.closed = true
	return nil
}
