package worker

import (
	"fmt"

	"github.com/turngate/turngate/sandboxes"
)

// maxSupplies bounds the bytes that the folders, files and builds of one sandbox
// take out of the task's bundle. A request can name the same files many times,
// and this worker holds them in memory.
const maxSupplies = 1 << 30

// supplies reads the parts of a sandbox from a bundle within a bound.
type supplies struct {
	bundle sandboxes.Bundle
	tars   map[string][]byte // by folder; a folder that is named again is packed once
	left   int64
}

// Has implements sandboxes.Bundle.
func (s *supplies) Has(name string) bool { return s.bundle.Has(name) }

// Tar implements sandboxes.Bundle.
func (s *supplies) Tar(dir string) ([]byte, error) {
	if data, ok := s.tars[dir]; ok {
		return data, nil
	}
	data, err := s.bundle.Tar(dir)
	if err == nil {
		err = s.take(len(data))
	}
	if err != nil {
		return nil, err
	}
	s.tars[dir] = data
	return data, nil
}

func (s *supplies) take(n int) error {
	if s.left -= int64(n); s.left < 0 {
		return fmt.Errorf("sandbox: its folders, files and builds have more than %d bytes together; name fewer or smaller ones", int64(maxSupplies))
	}
	return nil
}

// supplies returns the bundle of the rollout for one sandbox.
func (r *Rollout) supplies() *supplies {
	return &supplies{bundle: r.bundle, tars: map[string][]byte{}, left: maxSupplies}
}
