package place

import (
	"fmt"

	"github.com/turngate/turngate/sandboxes"
)

// maxBundleRead bounds the bytes that the folders, files and builds of one sandbox
// take out of the task's bundle. A request can name the same files many times,
// and this worker holds them in memory.
const maxBundleRead = 1 << 30

// boundedBundle reads the parts of a sandbox from a bundle, up to a bound.
type boundedBundle struct {
	bundle sandboxes.Bundle
	tars   map[string][]byte // by folder; a folder that is named again is packed once
	left   int64
}

// Has implements sandboxes.Bundle.
func (b *boundedBundle) Has(name string) bool { return b.bundle.Has(name) }

// Tar implements sandboxes.Bundle.
func (b *boundedBundle) Tar(dir string) ([]byte, error) {
	if data, ok := b.tars[dir]; ok {
		return data, nil
	}
	data, err := b.bundle.Tar(dir)
	if err == nil {
		err = b.take(len(data))
	}
	if err != nil {
		return nil, err
	}
	b.tars[dir] = data
	return data, nil
}

func (b *boundedBundle) take(n int) error {
	if b.left -= int64(n); b.left < 0 {
		return fmt.Errorf("sandbox: its folders, files and builds have more than %d bytes together; name fewer or smaller ones", int64(maxBundleRead))
	}
	return nil
}

// boundedBundle returns the bundle of the rollout for one sandbox.
func (p *Place) boundedBundle() *boundedBundle {
	return &boundedBundle{bundle: p.Bundle, tars: map[string][]byte{}, left: maxBundleRead}
}
