package far

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Tree is a folder as a tar stream.
type Tree struct {
	Digest string // sha256 of the stream, as hex digits
	Bytes  int64
}

// Trees remembers the trees of folders. No process changes these folders once they exist. The
// zero value is ready for use.
type Trees struct {
	mu    sync.Mutex
	known map[string]seenTree
}

// Path returns the path of the tree of a folder of this host below the folder of Serve.
func (t *Trees) Path(dir string) (string, error) {
	known, err := t.Of(dir)
	if err != nil {
		return "", err
	}
	return treePath(known.Digest), nil
}

func treePath(digest string) string { return filepath.Join("trees", digest) }

type seenTree struct {
	Tree
	changed time.Time // the folder's own time
}

// Of returns the tree of a folder.
func (t *Trees) Of(dir string) (Tree, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	info, err := os.Stat(dir)
	if err != nil {
		return Tree{}, fmt.Errorf("read a folder for a sandbox: %w", err)
	}
	if k, ok := t.known[dir]; ok && k.changed.Equal(info.ModTime()) {
		return k.Tree, nil
	}
	sum := &counter{}
	hash := sha256.New()
	if err := Pack(dir, io.MultiWriter(hash, sum)); err != nil {
		return Tree{}, fmt.Errorf("read a folder for a sandbox: %w", err)
	}
	found := Tree{hex.EncodeToString(hash.Sum(nil)), sum.bytes}
	if t.known == nil {
		t.known = map[string]seenTree{}
	}
	t.known[dir] = seenTree{found, info.ModTime()}
	return found, nil
}

type counter struct{ bytes int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

// Pack writes the folders, files and links below dir as a tar stream, which depends
// on their names, permissions and content alone.
func Pack(dir string, w io.Writer) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm())}
		switch {
		case info.IsDir():
			h.Typeflag = tar.TypeDir
		case info.Mode().IsRegular():
			h.Typeflag, h.Size = tar.TypeReg, info.Size()
		case info.Mode().Type() == fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = os.Readlink(path); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is no file, folder or link", path)
		}
		if err := out.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(out, f)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// unpack reads a tree of Pack with this digest into the empty folder dir. The digest is checked by
// then: on an error the folder is of no use.
func unpack(dir, digest string, r io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	hash := sha256.New()
	all := io.TeeReader(r, hash)
	in := tar.NewReader(all)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := unpackOne(root, h, in); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != digest {
		return fmt.Errorf("the copy has the digest %s, want %s", got, digest)
	}
	return nil
}

func unpackOne(root *os.Root, h *tar.Header, r io.Reader) error {
	mode := fs.FileMode(h.Mode).Perm() //nolint:gosec // Perm takes the bits of permissions
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(h.Name, 0o700); err != nil {
			return err
		}
		return root.Chmod(h.Name, mode|0o700)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, h.Name)
	case tar.TypeReg:
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Chmod(mode), f.Close())
	default:
		return fmt.Errorf("%q is no file, folder or link", h.Name)
	}
}
