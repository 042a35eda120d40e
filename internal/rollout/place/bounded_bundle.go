package place

import (
	"fmt"
	"io"

	"github.com/turngate/turngate/sandboxes"
)

// maxBundleRead bounds the bytes that the folders, files and builds of one sandbox
// take out of the task's bundle. A request can name the same files many times.
const maxBundleRead = 8 << 30

// boundedBundle reads the parts of a sandbox from a bundle, up to a bound.
type boundedBundle struct {
	bundle sandboxes.Bundle
	tars   map[string]*io.SectionReader // by folder; a folder that is named again counts once
	left   int64
}

// Has implements sandboxes.Bundle.
func (b *boundedBundle) Has(name string) bool { return b.bundle.Has(name) }

// Tar implements sandboxes.Bundle.
func (b *boundedBundle) Tar(dir string) (*io.SectionReader, error) {
	if packed, ok := b.tars[dir]; ok {
		return packed, nil
	}
	packed, err := b.bundle.Tar(dir)
	if err == nil {
		err = b.take(packed.Size())
	}
	if err != nil {
		return nil, err
	}
	b.tars[dir] = packed
	return packed, nil
}

func (b *boundedBundle) take(n int64) error {
	if b.left -= n; b.left < 0 {
		return fmt.Errorf("sandbox: its folders, files and builds have more than %d bytes together; name fewer or smaller ones", int64(maxBundleRead))
	}
	return nil
}
