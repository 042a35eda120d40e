package trainer

import (
	"context"
	"sync"
)

// maxBundles bounds the bytes of all kept bundles.
const maxBundles = 1 << 30

// bundles keeps bundles of tasks, to store them again with rollouts that the broker lost.
type bundles struct {
	*base
	mu    sync.Mutex
	of    map[string][]byte // by sha256
	bytes int
}

// put stores a bundle.
func (b *bundles) put(ctx context.Context, data []byte) (string, error) {
	sha, err := b.requests.PutBundle(ctx, data)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[sha] == nil && b.bytes+len(data) <= maxBundles {
		b.of[sha] = data
		b.bytes += len(data)
	}
	return sha, nil
}

// putAgain stores a bundle that was kept.
func (b *bundles) putAgain(ctx context.Context, sha string) error {
	b.mu.Lock()
	data := b.of[sha]
	b.mu.Unlock()
	if data == nil {
		return nil
	}
	_, err := b.requests.PutBundle(ctx, data)
	return err
}
