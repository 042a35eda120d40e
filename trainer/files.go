package trainer

import (
	"context"

	"github.com/turngate/turngate/schema"
)

// PutBundle stores a task's files for workers, and returns the sha256 for
// schema.Task.Bundle. The process keeps up to a GiB of bundles, and stores a
// bundle again with a rollout that the broker lost. While NATS cannot be
// reached it waits until the context ends.
func (t *Trainer) PutBundle(ctx context.Context, data []byte) (string, error) {
	sha, err := t.requests.PutBundle(ctx, data)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bundles[sha] == nil && t.bundleBytes+len(data) <= maxBundles {
		t.bundles[sha] = data
		t.bundleBytes += len(data)
	}
	return sha, nil
}

const maxBundles = 1 << 30

// Artifact reads a file of a rollout. While NATS cannot be reached it waits
// until the context ends.
func (t *Trainer) Artifact(ctx context.Context, a schema.Artifact) ([]byte, error) {
	return t.requests.Artifact(ctx, a.SHA256)
}
