package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/kubernetes"
	"github.com/turngate/turngate/sandboxes"
)

// patience is the time for which a worker waits for rights in a cluster: a worker in the
// cluster often begins a moment before its role counts. The zero value does not wait.
type patience struct{ within, every time.Duration }

func workerPatience() patience { return patience{within: time.Minute, every: 2 * time.Second} }

// open opens backends as openBackends does.
func (p patience) open(ctx context.Context, names []string, h sandboxes.Host, log zerolog.Logger) ([]sandboxes.Backend, error) {
	return openBackends(ctx, names, h, func(ctx context.Context, b sandboxes.Backend) error { return p.check(ctx, b, log) })
}

func (p patience) check(ctx context.Context, b sandboxes.Backend, log zerolog.Logger) error {
	end := time.Now().Add(p.within)
	for said := ""; ; {
		err := b.Check(ctx)
		switch {
		case p.within == 0 || !kubernetes.IsDenied(err):
			return err
		case !time.Now().Before(end):
			return fmt.Errorf("%w; the right was still missing after %s", err, p.within)
		case err.Error() != said:
			said = err.Error()
			log.Warn().Err(err).Stringer("at_most", p.within).Msg("waiting for a right in the cluster")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(p.every):
		}
	}
}
