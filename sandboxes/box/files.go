package box

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

// tooLargeError says that a file exceeds what the worker wants.
type tooLargeError struct {
	path  string
	limit int64
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%s is larger than %d bytes", e.path, e.limit)
}

// readFile sends a regular file. It never waits on a pipe or a device that
// the agent may have put in its place.
func readFile(path string, limit int64, w io.Writer) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > limit {
		return &tooLargeError{path, limit}
	}
	n, err := io.Copy(w, io.LimitReader(f, limit+1))
	if err == nil && n > limit {
		return &tooLargeError{path, limit}
	}
	return err
}

// writeFile replaces a file in one step, so that nobody reads half of it.
func writeFile(path string, mode fs.FileMode, owner account, r io.Reader) error {
	if err := makeDir(filepath.Dir(path), 0o755, &owner); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".turngate-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails when it was renamed, which is right
	_, err = io.Copy(tmp, r)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(tmp.Name(), mode); err != nil {
		return err
	}
	if err := os.Lchown(tmp.Name(), int(owner.uid), int(owner.gid)); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// makeDir makes a directory and its missing parents; those it makes belong to
// owner.
func makeDir(dir string, mode fs.FileMode, owner *account) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		return nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := makeDir(parent, 0o755, owner); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(dir, mode); err != nil {
		return err
	}
	return os.Lchown(dir, int(owner.uid), int(owner.gid))
}

func fileInfo(name string, info fs.FileInfo) sandboxes.FileInfo {
	return sandboxes.FileInfo{Name: name, Size: info.Size(), Mode: info.Mode()}
}

func listDir(dir string) ([]sandboxes.FileInfo, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := make([]sandboxes.FileInfo, 0, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			out = append(out, fileInfo(e.Name(), info))
		}
	}
	return out, nil
}

// tarIn unpacks below dir. os.Root keeps every entry inside, whatever its name
// says and whatever links lie in the way.
func tarIn(dir string, owner account, r io.Reader) error {
	if err := makeDir(dir, 0o755, &owner); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := unpack(root, h, archive, owner); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

func unpack(root *os.Root, h *tar.Header, content io.Reader, owner account) error {
	name := filepath.Clean(h.Name)
	if name == "." {
		return nil
	}
	mode := fs.FileMode(h.Mode).Perm()
	if parent := filepath.Dir(name); parent != "." && h.Typeflag != tar.TypeDir {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		if err := root.Chmod(name, mode|0o700); err != nil {
			return err
		}
	case tar.TypeReg:
		if err := root.RemoveAll(name); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err == nil {
			err = f.Chmod(mode)
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := root.RemoveAll(name); err != nil {
			return err
		}
		if err := root.Symlink(h.Linkname, name); err != nil {
			return err
		}
	default:
		return fmt.Errorf("entries of type %q are not unpacked", h.Typeflag)
	}
	return root.Lchown(name, int(owner.uid), int(owner.gid))
}

// tarOut packs regular files and directories below path; links and devices
// are left out.
func tarOut(path string, limit int64, w io.Writer) error {
	out := tar.NewWriter(&limitedWriter{w: w, left: limit, err: &tooLargeError{path, limit}})
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if p == path {
				return err
			}
			return nil // it vanished, or cannot be read: not ours to fail on
		}
		info, err := d.Info()
		if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		if rel == "." && !info.IsDir() {
			rel = filepath.Base(path)
		}
		return pack(out, p, rel, info)
	})
	if err != nil {
		return err
	}
	return out.Close()
}

func pack(out *tar.Writer, path, name string, info fs.FileInfo) error {
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	h.Name = strings.TrimPrefix(name, "/")
	if info.IsDir() {
		h.Name += "/"
		return out.WriteHeader(h)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil // it vanished
	}
	defer f.Close()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	// The size in the header is a promise; a file that shrank is filled up.
	n, err := io.Copy(out, io.LimitReader(f, h.Size))
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, zeros{}, h.Size-n)
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type limitedWriter struct {
	w    io.Writer
	left int64
	err  error
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		return 0, l.err
	}
	l.left -= int64(len(p))
	return l.w.Write(p)
}
