package box

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

// readFile sends a regular file. It never blocks on a pipe or a device that the
// agent may have put in the file's place.
func (w *walker) readFile(path string, limit int64, to io.Writer) error {
	dir, name, err := w.file(path, true)
	if err != nil {
		return err
	}
	defer dir.close()
	f, err := dir.openFile(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return renamed(err, path)
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
	n, err := io.Copy(to, io.LimitReader(f, limit+1))
	if err == nil && n > limit {
		return &tooLargeError{path, limit}
	}
	return err
}

// renamed puts the path that a caller knows into an error.
func renamed(err error, path string) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return &fs.PathError{Op: at.Op, Path: path, Err: at.Err}
	}
	return err
}

// writeFile replaces a file in one step, so that no reader sees half of it. A
// link in the file's place is replaced, too.
func (w *walker) writeFile(path string, mode fs.FileMode, owner account, r io.Reader) error {
	name := filepath.Base(path)
	if name == "/" || name == "." || name == ".." {
		return &fs.PathError{Op: "write", Path: path, Err: unix.EISDIR}
	}
	dir, err := w.folder(filepath.Dir(path), &owner, 0o755)
	if err != nil {
		return err
	}
	defer dir.close()
	tmp := fmt.Sprintf(".turngate-%d", rand.Uint64())
	f, err := dir.openFile(tmp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
	if err != nil {
		return renamed(err, path)
	}
	if err := writeNew(f, r, mode, owner); err != nil {
		_ = unix.Unlinkat(dir.fd(), tmp, 0)
		return renamed(err, path)
	}
	if err := unix.Renameat(dir.fd(), tmp, dir.fd(), name); err != nil {
		_ = unix.Unlinkat(dir.fd(), tmp, 0)
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// writeNew writes a new file and closes it.
func writeNew(f *os.File, r io.Reader, mode fs.FileMode, owner account) error {
	_, err := io.Copy(f, r)
	if err == nil {
		err = f.Chown(int(owner.uid), int(owner.gid))
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// makeDir makes a directory and its missing parents. owner becomes the owner of
// each directory that it makes. A directory that exists stays as it is.
func (w *walker) makeDir(dir string, mode fs.FileMode, owner *account) error {
	f, err := w.folder(dir, owner, mode)
	if err != nil {
		return err
	}
	f.close()
	return nil
}

func (w *walker) stat(path string) (sandboxes.FileInfo, error) {
	dir, name, err := w.file(path, true)
	if err != nil {
		return sandboxes.FileInfo{}, err
	}
	defer dir.close()
	f, err := dir.openFile(name, unix.O_PATH)
	if err != nil {
		return sandboxes.FileInfo{}, renamed(err, path)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return sandboxes.FileInfo{}, renamed(err, path)
	}
	return fileInfo(filepath.Base(path), info), nil
}

func (w *walker) listDir(path string, most int) ([]sandboxes.FileInfo, error) {
	dir, err := w.folder(path, nil, 0)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	f, err := dir.open()
	if err != nil {
		return nil, renamed(err, path)
	}
	defer f.Close()
	infos, err := readDir(f, most+1)
	if err != nil {
		return nil, renamed(err, path)
	}
	if len(infos) > most {
		return nil, &tooLargeError{path + ": the list of its files", int64(most)}
	}
	out := make([]sandboxes.FileInfo, 0, len(infos))
	for _, e := range infos {
		if info, err := e.Info(); err == nil {
			out = append(out, fileInfo(e.Name(), info))
		}
	}
	return out, nil
}

// readDir lists at most n files of an open folder in the order of their names.
// They are looked up in this folder, even if its path leads elsewhere meanwhile.
func readDir(dir *os.File, n int) ([]fs.DirEntry, error) {
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "list", Path: dir.Name(), Err: err}
	}
	same := os.NewFile(uintptr(fd), ofDescriptor(int(dir.Fd())))
	defer same.Close()
	entries, err := same.ReadDir(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// tarIn unpacks below dir. No entry leaves it, even if the entry's name or a link
// on its path leads outside. Folders that exist keep their owner and mode.
func (w *walker) tarIn(dir string, owner account, r io.Reader) error {
	to, err := w.folder(dir, &owner, 0o755)
	if err != nil {
		return err
	}
	defer to.close()
	u := unpacker{to: to, owner: owner, made: map[string]bool{}}
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.unpack(h, archive); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

type unpacker struct {
	to    *folder
	owner account
	made  map[string]bool // folders that this archive has made
}

func (u *unpacker) unpack(h *tar.Header, content io.Reader) error {
	name := filepath.Clean(h.Name)
	if name == "." {
		return nil
	}
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag == tar.TypeDir {
		return u.folder(name, mode|0o700)
	}
	parent, made, err := u.to.below(filepath.Dir(name), &u.owner, 0o755)
	if err != nil {
		return err
	}
	defer parent.close()
	if made {
		u.made[filepath.Dir(name)] = true
	}
	name = filepath.Base(name)
	if name == ".." || name == "/" {
		return errOutside
	}
	if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
		return fmt.Errorf("entries of type %q are not unpacked", h.Typeflag)
	}
	if err := removeAt(parent.fd(), name); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return u.link(parent, name, h.Linkname)
	}
	f, err := parent.openFile(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
	if err != nil {
		return err
	}
	return writeNew(f, content, mode, u.owner)
}

// folder makes a folder. One that this archive has made already, for a file in it,
// gets its mode.
func (u *unpacker) folder(name string, mode fs.FileMode) error {
	dir, made, err := u.to.below(name, &u.owner, mode)
	if err != nil {
		return err
	}
	defer dir.close()
	if u.made[name] {
		return chmodPath(dir.fd(), mode)
	}
	u.made[name] = made
	return nil
}

// link makes a symbolic link.
func (u *unpacker) link(parent *folder, name, target string) error {
	if err := unix.Symlinkat(target, parent.fd(), name); err != nil {
		return err
	}
	f, err := parent.openFile(name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode()&fs.ModeSymlink == 0 { // another process has replaced it
		return errors.Join(err, unix.EEXIST)
	}
	return unix.Fchownat(int(f.Fd()), "", int(u.owner.uid), int(u.owner.gid), unix.AT_EMPTY_PATH)
}
