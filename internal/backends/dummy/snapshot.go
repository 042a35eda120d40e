package dummy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/turngate/turngate/sandboxes"
)

// snapshot is a folder with the files of a sandbox.
type snapshot struct {
	b    *Backend
	dir  string
	gone bool // guarded by Backend.mu
}

// CanSnapshot implements sandboxes.Sandbox.
func (s *sandbox) CanSnapshot() error { return nil }

// Snapshot implements sandboxes.Sandbox.
func (s *sandbox) Snapshot(context.Context, int64) (sandboxes.Snapshot, error) {
	dir, err := os.MkdirTemp("", "turngate-dummy-snapshot-")
	if err != nil {
		return nil, fmt.Errorf("copy a dummy sandbox: %w", err)
	}
	if err := copyFiles(dir, s.dir); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("copy a dummy sandbox: %w", err)
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	made := &snapshot{b: s.b, dir: dir}
	s.b.snapshots = append(s.b.snapshots, made)
	return made, nil
}

// Snapshots returns the snapshots that are not removed.
func (b *Backend) Snapshots() []sandboxes.Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []sandboxes.Snapshot
	for _, s := range b.snapshots {
		if !s.gone {
			out = append(out, s)
		}
	}
	return out
}

func (s *snapshot) copyTo(dir string) error {
	err := copyFiles(dir, s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", sandboxes.ErrNoSnapshot, err)
	}
	if err != nil {
		return fmt.Errorf("copy a dummy snapshot: %w", err)
	}
	return nil
}

// Remove implements sandboxes.Snapshot.
func (s *snapshot) Remove(context.Context) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("remove a dummy snapshot: %w", err)
	}
	s.gone = true
	return nil
}

// copyFiles copies a folder with the modes of its files.
func copyFiles(to, from string) error {
	files := os.DirFS(from)
	if err := os.CopyFS(to, files); err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.Chmod(filepath.Join(to, name), info.Mode())
	})
}
