package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/turngate/turngate/sandboxes"
)

// justUsed protects an image from sweeps until its sandbox is made, and a part of
// the cache until the builds that need it have ended.
const justUsed = 10 * time.Minute

// markUsed records in the engine that an image is used now, for every worker of
// this host: setting a tag again updates its time.
func (b *Backend) markUsed(ctx context.Context, ref string) { _ = b.api.ImageTag(ctx, ref, ref) }

// BuiltImages lists the images that builds left, the most recently used first.
func (b *Backend) BuiltImages(ctx context.Context) ([]sandboxes.BuiltImage, error) {
	list, err := b.imageSizes(ctx)
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
			if !strings.HasPrefix(ref, b.config.Repo+":") {
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
	used, err := b.usedImages(ctx)
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

// imageSizes lists at least the images with labelBuild, with their shared sizes
// if the engine reports them.
func (b *Backend) imageSizes(ctx context.Context) ([]*image.Summary, error) {
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

// PruneImages removes images beyond the bounds and returns them. It removes
// neither an image that a container uses nor an image that no build of turngate
// left.
func (b *Backend) PruneImages(ctx context.Context, k sandboxes.Keep) ([]sandboxes.BuiltImage, error) {
	return b.prune(ctx, k, 0)
}

// keepWithin removes the images beyond the worker's bounds.
func (b *Backend) keepWithin(ctx context.Context) error {
	images := b.config.Keep
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

// pruneTime bounds one prune of the BuildKit cache.
const pruneTime = 5 * time.Minute

// KeepCache implements sandboxes.CacheKeeper.
func (b *Backend) KeepCache(ctx context.Context, failed func(error)) {
	for ctx.Err() == nil {
		if err := b.PruneCache(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
		case <-b.built:
		}
	}
}

// hasBuilt tells KeepCache that a build has ended and older images are removed.
func (b *Backend) hasBuilt() {
	select {
	case b.built <- struct{}{}:
	default: // a prune is due already
	}
}

// PruneCache removes the parts of the BuildKit cache with the oldest last use
// until the cache is within the bound of Config.Keep. It spares the parts that
// were used just now or that an image shares, so more than the bound may be left.
// It does nothing on an engine without BuildKit. It fails after 5 minutes.
func (b *Backend) PruneCache(ctx context.Context) error {
	if b.config.Keep.Cache <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	has, err := b.hasBuildKit(ctx)
	if err != nil || !has {
		return err
	}
	_, err = b.api.BuildCachePrune(ctx, build.CachePruneOptions{
		KeepStorage: b.config.Keep.Cache, Filters: filters.NewArgs(filters.Arg("until", justUsed.String())),
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("prune the cache of image builds: %w", err)
	}
	return nil
}

func (b *Backend) prune(ctx context.Context, k sandboxes.Keep, spare time.Duration) ([]sandboxes.BuiltImage, error) {
	b.pruning.Lock()
	defer b.pruning.Unlock()
	all, err := b.BuiltImages(ctx)
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
		gone, err := b.removeImage(ctx, i.Ref)
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

// BuildRef returns the name in the engine of the image of a build of the
// worker's operator.
func (b *Backend) BuildRef(how *sandboxes.Build) (string, error) {
	_, shared, err := b.buildRefs(how)
	return shared, err
}

// RemoveBuilt removes an image that a build left. It returns false if a
// container uses the image.
func (b *Backend) RemoveBuilt(ctx context.Context, i sandboxes.BuiltImage) (bool, error) {
	b.pruning.Lock()
	defer b.pruning.Unlock()
	return b.removeImage(ctx, i.Ref)
}

// Pulled describes an image with a name that no build gave. It returns false if
// the engine lacks it. Its Used is the time at which the engine got or tagged it.
func (b *Backend) Pulled(ctx context.Context, ref string) (sandboxes.BuiltImage, bool, error) {
	img, err := b.api.ImageInspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		return sandboxes.BuiltImage{}, false, nil
	}
	if err != nil {
		return sandboxes.BuiltImage{}, false, wrapImage(ref, err)
	}
	return sandboxes.BuiltImage{Ref: ref, Shared: ref, ID: img.ID, Size: img.Size, Used: img.Metadata.LastTagTime}, true, nil
}

// removeImage removes an image and, like docker rmi, the unnamed parent images
// that the classic builder made for it. It returns false if a container uses the
// image.
func (b *Backend) removeImage(ctx context.Context, ref string) (bool, error) {
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

// usedImages returns the ids of the images of all containers, running or not, and
// of the images below snapshots.
func (b *Backend) usedImages(ctx context.Context) (map[string]bool, error) {
	list, err := b.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, c := range list {
		used[c.ImageID] = true
	}
	copies, err := b.snapshots(ctx)
	for _, i := range copies {
		used[i.Labels[labelBase]] = true
	}
	return used, err
}
