package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
)

// buildCache is the cache of BuildKit.
type buildCache struct {
	api   *client.Client
	bound int64         // in bytes; 0: none
	built chan struct{} // of capacity 1; has a value if the cache must be pruned
}

// pruneTime bounds one prune of the BuildKit cache.
const pruneTime = 5 * time.Minute

// keep prunes the cache now and after each build, until the context ends.
func (c *buildCache) keep(ctx context.Context, failed func(error)) {
	for ctx.Err() == nil {
		if err := c.prune(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
		case <-c.built:
		}
	}
}

// hasBuilt tells keep that a build has ended and older images are removed.
func (c *buildCache) hasBuilt() {
	select {
	case c.built <- struct{}{}:
	default: // a prune is due already
	}
}

// prune removes parts of the cache, see Store.PruneCache.
func (c *buildCache) prune(ctx context.Context) error {
	if c.bound <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	has, err := hasBuildKit(ctx, c.api)
	if err != nil || !has {
		return err
	}
	_, err = c.api.BuildCachePrune(ctx, build.CachePruneOptions{
		KeepStorage: c.bound, Filters: filters.NewArgs(filters.Arg("until", justUsed.String())),
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("prune the cache of image builds: %w", err)
	}
	return nil
}
