package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
)

// justUsed protects an image from sweeps until its sandbox is made, and a part of
// the cache until the builds that need it have ended.
const justUsed = 10 * time.Minute

// built has the images that builds left, also builds of other processes.
type built struct {
	api       *client.Client
	repo      string
	keep      sandboxes.Keep // bounds, see keepWithin
	snapshots *snapshots

	removing sync.Mutex // held while images are removed
}

// markUsed records in the engine that an image is used now, for every worker of
// this host: setting a tag again updates its time.
func (b *built) markUsed(ctx context.Context, ref string) { _ = b.api.ImageTag(ctx, ref, ref) }

// list lists the images, the most recently used first.
func (b *built) list(ctx context.Context) ([]sandboxes.BuiltImage, error) {
	list, err := b.sizes(ctx)
	if err != nil {
		return nil, err
	}
	var out []sandboxes.BuiltImage
	for _, s := range list {
		task, ours := s.Labels[labelBuild]
		if !ours {
			continue
		}
		for _, ref := range s.RepoTags {
			if !strings.HasPrefix(ref, b.repo+":") {
				continue // a foreign name for an image based on one of ours
			}
			i := sandboxes.BuiltImage{Ref: ref, ID: s.ID, Task: task, Shared: cmp.Or(s.Labels[labelShared], ref), Size: s.Size - max(s.SharedSize, 0), Used: time.Unix(s.Created, 0)}
			seen, err := b.api.ImageInspect(ctx, ref)
			if errdefs.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("look up image %s: %w", ref, err)
			}
			if t := seen.Metadata.LastTagTime; !t.IsZero() {
				i.Used = t
			}
			out = append(out, i)
		}
	}
	used, err := b.snapshots.usedImages(ctx)
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i].InUse = used[out[i].ID]
	}
	slices.SortFunc(out, func(a, b sandboxes.BuiltImage) int { return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.Ref, b.Ref)) })
	return out, nil
}

const (
	usageTries = 10
	usagePause = 500 * time.Millisecond
)

// errUsage means that the engine computes the sizes of images for other callers.
var errUsage = errors.New("the Docker engine is busy with the sizes of images")

// sizes lists at least the images with labelBuild, with their shared sizes
// if the engine reports them.
func (b *built) sizes(ctx context.Context) ([]*image.Summary, error) {
	for try := 1; ; try++ {
		usage, err := b.api.DiskUsage(ctx, types.DiskUsageOptions{Types: []types.DiskUsageObject{types.ImageObject}})
		if err == nil {
			return usage.Images, nil
		}
		// The engine computes sizes for one caller at a time. Without the shared
		// sizes a sweep would remove too many images.
		if !strings.Contains(err.Error(), "already running") {
			break
		}
		if try == usageTries {
			return nil, errUsage
		}
		select {
		case <-time.After(usagePause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	list, err := b.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelBuild))})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []*image.Summary
	for _, s := range list {
		out = append(out, &s)
	}
	return out, nil
}

// keepWithin removes the images beyond the worker's bounds.
func (b *built) keepWithin(ctx context.Context) error {
	images := b.keep
	images.Cache = 0
	var err error
	if images != (sandboxes.Keep{}) {
		_, err = b.prune(ctx, images, justUsed)
	}
	if errors.Is(err, errUsage) {
		err = nil // the next sweep is soon enough
	}
	return err
}

// prune removes images beyond the bounds and returns them. It removes neither an
// image that a container uses nor one that was used within the time spare.
func (b *built) prune(ctx context.Context, k sandboxes.Keep, spare time.Duration) ([]sandboxes.BuiltImage, error) {
	b.removing.Lock()
	defer b.removing.Unlock()
	all, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	count, size := len(all), int64(0)
	for _, i := range all {
		size += i.Size
	}
	var removed []sandboxes.BuiltImage
	var failed []error
	for _, i := range slices.Backward(all) {
		idle := time.Since(i.Used)
		over := k.Images > 0 && count > k.Images || k.Bytes > 0 && size > k.Bytes || k.Age > 0 && idle > k.Age
		if !over || i.InUse || idle < spare {
			continue
		}
		gone, err := b.untag(ctx, i.Ref)
		if err != nil {
			failed = append(failed, err)
		}
		if gone {
			count, size = count-1, size-i.Size
			removed = append(removed, i)
		}
	}
	return removed, errors.Join(failed...)
}

// remove removes an image. It returns false if a container uses the image.
func (b *built) remove(ctx context.Context, ref string) (bool, error) {
	b.removing.Lock()
	defer b.removing.Unlock()
	return b.untag(ctx, ref)
}

// untag removes an image and, like docker rmi, the unnamed parent images
// that the classic builder made for it. It returns false if a container uses the
// image.
func (b *built) untag(ctx context.Context, ref string) (bool, error) {
	_, err := b.api.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true})
	switch {
	case err == nil || errdefs.IsNotFound(err):
		return true, nil
	case errdefs.IsConflict(err):
		return false, nil
	default:
		return false, fmt.Errorf("remove image %s: %w", ref, err)
	}
}
