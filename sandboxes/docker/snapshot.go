package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/turngate/turngate/sandboxes"
)

// snapshotRepo is the repository of the images that snapshots are.
const snapshotRepo = "turngate-snapshot"

func isSnapshot(ref string) bool { return strings.HasPrefix(ref, snapshotRepo+":") }

// Labels of the images that snapshots are. The engine also copies the labels of
// the container into the image.
const (
	labelSnapshot = "turngate.snapshot" // the owner
	labelBase     = "turngate.base"     // id of the image of the container
)

const (
	// copyTime bounds the copy of one container after its rollout has gone.
	copyTime = 10 * time.Minute
	// leftSnapshot is the age of another worker's snapshot without containers at
	// which Sweep removes it: that worker was killed and did not start again.
	leftSnapshot = 6 * time.Hour
)

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

// filesElsewhere returns the reason why a copy of the container's own file system
// would lack files of the sandbox; empty if it has all of them.
func filesElsewhere(s sandboxes.Spec, img image.InspectResponse) string {
	switch {
	case len(s.Services) > 0:
		return "the sandbox has side-cars"
	case len(s.Folders) > 0:
		return "the sandbox has shared folders"
	case len(s.Container.Tmpfs) > 0:
		return "the sandbox has a tmpfs"
	case img.Config != nil && len(img.Config.Volumes) > 0:
		return "the image has volumes"
	}
	return ""
}

// CanSnapshot implements sandboxes.Sandbox.
func (sb *sandbox) CanSnapshot() error {
	switch {
	case sb.part:
		return sandboxes.NoSnapshots("a side-car is part of another sandbox")
	case sb.alone != "":
		return sandboxes.NoSnapshots(sb.alone)
	}
	return nil
}

// Snapshot implements sandboxes.Sandbox. It does not pause the container.
func (sb *sandbox) Snapshot(ctx context.Context, maxBytes int64) (sandboxes.Snapshot, error) {
	if err := sb.CanSnapshot(); err != nil {
		return nil, err
	}
	found, _, err := sb.b.api.ContainerInspectWithRaw(ctx, sb.id, true)
	if err != nil {
		return nil, fmt.Errorf("measure container %s: %w", sb.name, err)
	}
	if size := found.SizeRw; maxBytes > 0 && size != nil && *size > maxBytes {
		return nil, sandboxes.NoSnapshots(fmt.Sprintf("the setup wrote %d MB, and this worker copies at most %d", *size>>20, maxBytes>>20))
	}
	type copied struct {
		snapshot *snapshot
		err      error
	}
	done, left := make(chan copied), make(chan struct{})
	go func() {
		s, err := sb.commit(ctx)
		select {
		case done <- copied{s, err}:
		case <-left:
			if s != nil {
				s.abandon(ctx)
			}
		}
	}()
	select {
	case c := <-done:
		if c.err != nil {
			return nil, c.err
		}
		return c.snapshot, nil
	case <-ctx.Done():
		close(left)
		return nil, context.Cause(ctx)
	}
}

// commit makes the image, also after the context has ended: the engine would make it
// nevertheless, and without its id it could not be removed.
func (sb *sandbox) commit(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), copyTime)
	defer cancel()
	made, err := sb.b.api.ContainerCommit(ctx, sb.id, container.CommitOptions{
		Reference: snapshotRepo + ":" + strings.ToLower(rand.Text()), Comment: "turngate: the files of a sandbox",
		Config: &container.Config{Labels: map[string]string{labelSnapshot: sb.owner, labelBase: sb.base}},
	})
	if err != nil {
		return nil, fmt.Errorf("copy container %s: %w", sb.name, err)
	}
	sb.b.copies.add(made.ID)
	return &snapshot{b: sb.b, image: made.ID}, nil
}

// abandon removes a snapshot after its rollout has gone. If it cannot, a later Sweep
// does.
func (s *snapshot) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_ = s.Remove(ctx)
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

// snapshots lists the snapshots of all processes.
func (b *Backend) snapshots(ctx context.Context) ([]image.Summary, error) {
	all, err := b.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelSnapshot))})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return slices.DeleteFunc(all, func(i image.Summary) bool { return !slices.ContainsFunc(i.RepoTags, isSnapshot) }), nil
}

// sweepSnapshots removes the snapshots that earlier processes of this owner left,
// and old ones of other owners that no container has.
func (b *Backend) sweepSnapshots(ctx context.Context, owner string) error {
	all, err := b.snapshots(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	used, err := b.usedImages(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, i := range all {
		left := i.Labels[labelSnapshot] == owner && !b.copies.has(i.ID)
		if left || !used[i.ID] && time.Since(time.Unix(i.Created, 0)) > leftSnapshot && !b.copies.has(i.ID) {
			failed = append(failed, b.removeSnapshot(ctx, i.ID))
		}
	}
	return errors.Join(failed...)
}
