package box

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

// tooLargeError means that a file exceeds the limit of the worker's request.
type tooLargeError struct {
	path  string
	limit int64
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%s is larger than %d bytes", e.path, e.limit)
}

// readFile sends a regular file. It never blocks on a pipe or a device that the
// agent may have put in the file's place.
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

// writeFile replaces a file in one step, so that no reader sees half of it.
func writeFile(path string, mode fs.FileMode, owner account, r io.Reader) error {
	if err := makeDir(filepath.Dir(path), 0o755, &owner); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".turngate-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as intended
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

// makeDir makes a directory and its missing parents. owner becomes the owner of
// each directory that it makes.
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

func listDir(dir string, most int) ([]sandboxes.FileInfo, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > most {
		return nil, &tooLargeError{dir + ": the list of its files", int64(most)}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	out := make([]sandboxes.FileInfo, 0, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			out = append(out, fileInfo(e.Name(), info))
		}
	}
	return out, nil
}

// tarIn unpacks below dir. os.Root keeps every entry inside, even if its name
// or a link on its path leads outside.
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

// maxWalk is the most files that tarOut looks at, packed or not. Their names are
// in the memory of the sandbox.
const maxWalk = 500_000

// tarOut packs regular files and directories below path. It leaves out links,
// devices and paths that exclude matches.
func tarOut(path string, limit int64, exclude []string, w io.Writer) error {
	return tarTree(path, limit, maxWalk, exclude, w)
}

// tarTree is tarOut with a bound of the files that it looks at.
func tarTree(path string, limit int64, most int, exclude []string, w io.Writer) error {
	excluded, err := sandboxes.NewExcluder(exclude)
	if err != nil {
		return err
	}
	named := path
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	out := tar.NewWriter(&limitedWriter{w: w, left: limit, err: &tooLargeError{named, limit}})
	top, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if top.IsDir() {
		if err := unix.Access(path, unix.R_OK); err != nil {
			return &fs.PathError{Op: "open", Path: named, Err: err}
		}
	}
	many := &tooLargeError{named + ": the list of its files", int64(most)}
	err = walk(path, top, &most, many, func(p string, info fs.FileInfo) error {
		if !info.IsDir() && !info.Mode().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		if rel != "." && excluded.Excludes(rel) {
			if info.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if rel == "." && !info.IsDir() {
			rel = filepath.Base(named)
		}
		return pack(out, p, rel, info)
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// walk calls visit for a file and, in the order of their names, for all files
// below it, without following links. It skips the folders for which visit
// returns fs.SkipDir and the files that vanished or cannot be read. After most
// files below the first one it returns the error many. Unlike filepath.WalkDir
// it never holds the names of more files than that.
func walk(path string, info fs.FileInfo, most *int, many error, visit func(string, fs.FileInfo) error) error {
	if err := visit(path, info); err != nil || !info.IsDir() {
		if errors.Is(err, fs.SkipDir) {
			return nil
		}
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	entries, _ := f.ReadDir(*most + 1) // an error ends the list
	f.Close()
	if *most -= len(entries); *most < 0 {
		return many
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		if err := walk(filepath.Join(path, e.Name()), info, most, many, visit); err != nil {
			return err
		}
	}
	return nil
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
		return nil // the file vanished
	}
	defer f.Close()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	// The header has announced the size: a file that shrank is padded with zeros.
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
