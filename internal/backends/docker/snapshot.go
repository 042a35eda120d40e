package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

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
	all   *snapshots
	image string // id

	mu   sync.Mutex
	gone bool
}

// snapshots has the snapshots of an engine.
type snapshots struct {
	api *client.Client

	blind atomic.Bool // the engine does not see the files of its containers

	mu  sync.Mutex
	own map[string]bool // ids of the images that are snapshots of this process
}

func (c *snapshots) note(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		c.own = map[string]bool{}
	}
	c.own[id] = true
}

func (c *snapshots) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.own, id)
}

func (c *snapshots) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.own[id]
}

const blindEngine = "the engine does not see the files of its containers; gVisor needs the argument --overlay2=none"

// check returns an error if the engine does not have the files that the sandbox of a
// container writes, as with gVisor, which keeps them in memory. A copy would lack them
// without a word.
func (c *snapshots) check(ctx context.Context, of *instance, files sandboxes.Files) error {
	mark := "/.turngate-" + rand.Text()
	if err := files.Write(ctx, mark, strings.NewReader(""), 0o600, "0"); err != nil {
		return fmt.Errorf("try a file of container %s: %w", of.name, err)
	}
	_, err := c.api.ContainerStatPath(ctx, of.id, mark)
	switch {
	case errdefs.IsNotFound(err):
		c.blind.Store(true)
		err = sandboxes.NoSnapshots(blindEngine)
	case err != nil:
		err = fmt.Errorf("look for a file of container %s: %w", of.name, err)
	}
	return errors.Join(err, files.Remove(ctx, mark))
}

// take copies the files of a container. It does not pause the container. See
// sandboxes.Sandbox for maxBytes and the end of the context.
func (c *snapshots) take(ctx context.Context, of *instance, labels map[string]string, maxBytes int64) (*snapshot, error) {
	found, _, err := c.api.ContainerInspectWithRaw(ctx, of.id, true)
	if err != nil {
		return nil, fmt.Errorf("measure container %s: %w", of.name, err)
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
		s, err := c.commit(ctx, of, labels)
		select {
		case done <- copied{s, err}:
		case <-left:
			if s != nil {
				s.abandon(ctx)
			}
		}
	}()
	select {
	case got := <-done:
		return got.snapshot, got.err
	case <-ctx.Done():
		close(left)
		return nil, context.Cause(ctx)
	}
}

// commit makes the image, also after the context has ended: the engine would make it
// nevertheless, and without its id it could not be removed.
func (c *snapshots) commit(ctx context.Context, of *instance, labels map[string]string) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), copyTime)
	defer cancel()
	made, err := c.api.ContainerCommit(ctx, of.id, container.CommitOptions{
		Reference: snapshotRepo + ":" + strings.ToLower(rand.Text()), Comment: "turngate: the files of a sandbox",
		Config: &container.Config{Labels: labels},
	})
	if err != nil {
		return nil, fmt.Errorf("copy container %s: %w", of.name, err)
	}
	c.note(made.ID)
	return &snapshot{all: c, image: made.ID}, nil
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
	if err := s.all.remove(ctx, s.image); err != nil {
		return err
	}
	s.all.drop(s.image)
	s.gone = true
	return nil
}

func (c *snapshots) remove(ctx context.Context, id string) error {
	_, err := c.api.ImageRemove(ctx, id, image.RemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove snapshot %s: %w", id, err)
	}
	return nil
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

// of returns the snapshot of a Spec, and nil if it has none.
func (c *snapshots) of(s *sandboxes.Spec) (*snapshot, error) {
	if s.Snapshot == nil {
		return nil, nil
	}
	from, ours := s.Snapshot.(*snapshot)
	if !ours || from.all != c {
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

// list lists the snapshots of all processes.
func (c *snapshots) list(ctx context.Context) ([]image.Summary, error) {
	all, err := c.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelSnapshot))})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return slices.DeleteFunc(all, func(i image.Summary) bool { return !slices.ContainsFunc(i.RepoTags, isSnapshot) }), nil
}

// sweep removes the snapshots that earlier processes of this owner left,
// and old ones of other owners that no container has.
func (c *snapshots) sweep(ctx context.Context, owner string) error {
	all, err := c.list(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	used, err := c.usedImages(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, i := range all {
		left := i.Labels[labelSnapshot] == owner && !c.has(i.ID)
		if left || !used[i.ID] && time.Since(time.Unix(i.Created, 0)) > leftSnapshot && !c.has(i.ID) {
			failed = append(failed, c.remove(ctx, i.ID))
		}
	}
	return errors.Join(failed...)
}

// usedImages returns the ids of the images of all containers, running or not, and
// of the images below snapshots.
func (c *snapshots) usedImages(ctx context.Context) (map[string]bool, error) {
	list, err := c.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, made := range list {
		used[made.ImageID] = true
	}
	copies, err := c.list(ctx)
	for _, i := range copies {
		used[i.Labels[labelBase]] = true
	}
	return used, err
}
