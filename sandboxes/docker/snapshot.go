package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/turngate/turngate/sandboxes"
)

// snapshotRepo is the repository of the images that snapshots are.
const snapshotRepo = "turngate-snapshot"

// isSnapshot reports whether a name in the engine is a snapshot's.
func isSnapshot(ref string) bool { return strings.HasPrefix(ref, snapshotRepo+":") }

// labelSnapshot names the owner of an image that a snapshot is. Containers inherit
// the labels of their image, so labelOwner cannot select such images.
const labelSnapshot = "turngate.snapshot"

// snapshot is an image with the files of a container.
type snapshot struct {
	b     *Backend
	image string // id

	mu   sync.Mutex
	gone bool
}

// copies are the ids of the images that are snapshots of this process.
type copies struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (c *copies) add(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = map[string]bool{}
	}
	c.ids[id] = true
}

func (c *copies) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id)
}

func (c *copies) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[id]
}

// fixedFiles returns the reason why a copy of the container's own file system would
// lack files of the sandbox; empty if it has all of them.
func fixedFiles(s sandboxes.Spec, img image.InspectResponse) string {
	switch {
	case len(s.Services) > 0:
		return "the sandbox has side-cars, whose files it would lack"
	case len(s.Folders) > 0:
		return "the sandbox has shared folders, whose files it would lack"
	case len(s.Container.Tmpfs) > 0:
		return "the sandbox has a tmpfs, whose files it would lack"
	case img.Config != nil && len(img.Config.Volumes) > 0:
		return "the image has volumes, whose files it would lack"
	}
	return ""
}

// Snapshot implements sandboxes.Sandbox. It pauses the container.
func (sb *sandbox) Snapshot(ctx context.Context) (sandboxes.Snapshot, error) {
	if sb.part {
		return nil, sandboxes.NoSnapshots("a side-car is part of another sandbox")
	}
	if sb.fixed != "" {
		return nil, sandboxes.NoSnapshots(sb.fixed)
	}
	// The name is random, so that no request can name the copy as its image.
	made, err := sb.b.api.ContainerCommit(ctx, sb.id, container.CommitOptions{
		Reference: snapshotRepo + ":" + strings.ToLower(rand.Text()), Comment: "turngate: the files of a sandbox", Pause: true,
		Config: &container.Config{Labels: map[string]string{labelSnapshot: sb.owner}},
	})
	if err != nil {
		return nil, fmt.Errorf("copy container %s: %w", sb.name, err)
	}
	sb.b.copies.add(made.ID)
	return &snapshot{b: sb.b, image: made.ID}, nil
}

// Remove implements sandboxes.Snapshot.
func (s *snapshot) Remove(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	if err := s.b.removeSnapshot(ctx, s.image); err != nil {
		return err
	}
	s.b.copies.drop(s.image)
	s.gone = true
	return nil
}

func (b *Backend) removeSnapshot(ctx context.Context, id string) error {
	_, err := b.api.ImageRemove(ctx, id, image.RemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove snapshot %s: %w", id, err)
	}
	return nil
}

// snapshotOf returns the snapshot of a Spec, and nil if it has none.
func (b *Backend) snapshotOf(s *sandboxes.Spec) (*snapshot, error) {
	if s.Snapshot == nil {
		return nil, nil
	}
	from, ours := s.Snapshot.(*snapshot)
	if !ours || from.b != b {
		return nil, errors.New("the snapshot is another backend's")
	}
	s.Files = nil // the snapshot has them
	return from, nil
}

// explain returns ErrNoSnapshot if a container could not be made because its
// snapshot is gone.
func (s *snapshot) explain(err error) error {
	if s != nil && errdefs.IsNotFound(err) {
		return fmt.Errorf("%w: %w", sandboxes.ErrNoSnapshot, err)
	}
	return err
}

// sweepSnapshots removes the snapshots that earlier processes of this owner left.
func (b *Backend) sweepSnapshots(ctx context.Context, owner string) error {
	left, err := b.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelSnapshot+"="+owner))})
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	var failed []error
	for _, i := range left {
		if slices.ContainsFunc(i.RepoTags, isSnapshot) && !b.copies.has(i.ID) {
			failed = append(failed, b.removeSnapshot(ctx, i.ID))
		}
	}
	return errors.Join(failed...)
}
