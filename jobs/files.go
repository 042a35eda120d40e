package jobs

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// writeJSON replaces a file atomically, also if the machine crashes.
func writeJSON(dir, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer root.Close()
	return replace(root, name, append(data, '\n'))
}

// replace writes a temporary file, syncs it to disk and renames it.
func replace(root *os.Root, name string, data []byte) error {
	side := path.Join(path.Dir(name), "."+path.Base(name)+".new")
	err := func() error {
		if err := root.Remove(side); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that died
			return err
		}
		f, err := root.OpenFile(side, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		err = errors.Join(err, f.Sync(), f.Close())
		if err == nil {
			err = root.Rename(side, name)
		}
		if err != nil {
			return err
		}
		d, err := root.Open(path.Dir(name))
		if err != nil {
			return err
		}
		defer d.Close()
		return d.Sync()
	}()
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// put writes a file below a folder, syncs it to disk, and makes the folders of its path.
func put(root *os.Root, name string, from io.Reader) error {
	if err := write(root, name, from, (*os.File).Sync); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Bounds of a folder that a rollout left.
const (
	maxFiles    = 20_000
	maxUnpacked = 256 << 20
	maxDepth    = 64
)

// unpack writes the files and folders of a tar below a folder. The tar comes
// from an agent and is not trusted: unpack leaves out links, devices and paths
// that leave the folder. It returns the number of entries that it left out.
func unpack(root *os.Root, below string, packed io.Reader) (leftOut int, err error) {
	var bytesLeft int64 = maxUnpacked
	if err := root.MkdirAll(below, 0o700); err != nil {
		return 0, fmt.Errorf("unpack %s: %w", below, err)
	}
	r := tar.NewReader(packed)
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return leftOut, nil
		}
		if err != nil {
			return leftOut, fmt.Errorf("unpack %s: %w", below, err)
		}
		if n >= maxFiles {
			return leftOut, fmt.Errorf("unpack %s: it has more than %d entries", below, maxFiles)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		regular := h.Typeflag == tar.TypeReg
		if name == "." {
			continue
		}
		if !regular && h.Typeflag != tar.TypeDir || !filepath.IsLocal(name) || strings.Count(name, "/") > maxDepth || strings.ContainsRune(name, 0) {
			leftOut++
			continue
		}
		at := path.Join(below, name)
		if !regular {
			err = root.MkdirAll(at, 0o700)
		} else if bytesLeft -= h.Size; bytesLeft < 0 {
			return leftOut, fmt.Errorf("unpack %s: it has more than %d bytes", below, int64(maxUnpacked))
		} else {
			err = write(root, at, r, nil) // a sync of each of many files takes minutes
		}
		if isOdd(err) {
			leftOut++
			continue
		}
		if err != nil {
			return leftOut, fmt.Errorf("unpack %s: %w", below, err)
		}
	}
}

// isOdd reports whether the file system cannot have the entry: for example, its
// name is too long, or is both a file and a folder.
func isOdd(err error) bool {
	var at *fs.PathError
	return errors.As(err, &at) && !errors.Is(err, fs.ErrPermission) && !noRoom(err)
}

// write writes a file, after which it calls written unless that is nil.
func write(root *os.Root, at string, from io.Reader, written func(*os.File) error) error {
	if dir := path.Dir(at); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	f, err := root.OpenFile(at, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err == nil && written != nil {
		err = written(f)
	}
	return errors.Join(err, f.Close())
}

// noRoom reports whether the disk is full or failing.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO)
}
