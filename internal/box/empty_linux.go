package box

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// removeAll removes a file or a tree of any depth. A missing path is no error. A
// link in its place is removed.
func (w *walker) removeAll(path string) error {
	dir, name, err := w.file(path, false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	if err := removeAt(dir.fd(), name); err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// removeAt removes a file or a tree in an open folder. A missing one is no error.
func removeAt(at int, name string) error {
	isDir, err := unlink(at, name)
	if err != nil || !isDir {
		return err
	}
	dir, err := openDir(at, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := emptyFD(dir); err != nil {
		return err
	}
	return ignoreMissing(unix.Unlinkat(at, name, unix.AT_REMOVEDIR))
}

// makeEmpty makes dir an empty folder of its own. A link, or a file, in the
// place of dir or of a folder above it is replaced by a folder; no link is
// followed. A mount stays and loses its content. If others may search dir, they
// may search the folders above it, too, except for folders that cannot be changed. If only its
// owner may write dir, no other user may replace it: a folder above then belongs to root or to
// the owner, and others do not write it, except where the sticky bit keeps them from renaming.
// Access control lists are removed.
func makeEmpty(dir string, mode fs.FileMode, owner *account) error {
	dir = filepath.Clean(dir)
	if !filepath.IsAbs(dir) || dir == "/" {
		return fmt.Errorf("%s is not an absolute path below /", dir)
	}
	at, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	defer func() { unix.Close(at) }()
	above, last := filepath.Split(dir[1:])
	for part := range strings.SplitSeq(strings.TrimSuffix(above, "/"), "/") {
		if part == "" {
			continue
		}
		next, err := makeAbove(at, part, mode, owner)
		if err != nil {
			return &fs.PathError{Op: "empty", Path: dir, Err: err}
		}
		unix.Close(at)
		at = next
	}
	if err := makeEmptyAt(at, last, mode, owner); err != nil {
		return &fs.PathError{Op: "empty", Path: dir, Err: err}
	}
	return nil
}

// pathFolder opens a folder without the right to list it. It follows no link.
func pathFolder(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// makeAbove opens a folder above the one that makeEmpty makes with this mode.
func makeAbove(at int, name string, mode fs.FileMode, owner *account) (int, error) {
	fd, err := pathFolder(at, name)
	if err != nil {
		if err := ignoreMissing(err); err != nil && !errors.Is(err, unix.ENOTDIR) {
			return -1, err
		}
		if err := ignoreMissing(unix.Unlinkat(at, name, 0)); err != nil {
			return -1, err
		}
		return makeFolder(at, name, 0o755, owner)
	}
	err = reopen(fd, mode&0o111)
	if err == nil && mode&0o022 == 0 && os.Geteuid() == 0 {
		err = keepOthersOut(fd, owner)
	}
	if err != nil && !cannotChange(err) {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// keepOthersOut lets no user but root and the owner rename the files of a folder.
func keepOthersOut(fd int, owner *account) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != 0 && st.Uid != owner.uid {
		if err := unix.Fchownat(fd, "", 0, -1, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if st.Mode&0o022 == 0 || st.Mode&unix.S_ISVTX != 0 {
		return nil
	}
	return unix.Chmod(ofDescriptor(fd), st.Mode&0o7777&^0o022)
}

func makeEmptyAt(at int, name string, mode fs.FileMode, owner *account) error {
	fd, err := pathFolder(at, name)
	if err == nil {
		defer unix.Close(fd)
		if err := reopen(fd, 0); err != nil {
			return err
		}
	}
	err = removeAt(at, name)
	if fd >= 0 && isMount(err) {
		if dir, err := openDir(fd, "."); err != nil {
			return err
		} else if err := errors.Join(emptyFD(dir), dir.Close()); err != nil {
			return err
		}
		return errors.Join(unix.Fchownat(fd, "", int(owner.uid), int(owner.gid), unix.AT_EMPTY_PATH), chmodPath(fd, mode))
	}
	if err != nil {
		return err
	}
	made, err := makeFolder(at, name, mode, owner)
	if err != nil {
		return err
	}
	return unix.Close(made)
}

// isMount reports whether the removal of a folder failed on a mount.
func isMount(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EROFS) }

// reopen adds permissions to a folder and removes its access control lists. It changes only
// differences: the root of an image may be read-only.
func reopen(fd int, needs fs.FileMode) error {
	if os.Geteuid() != 0 {
		needs |= 0o700 // without root these are needed to change the content
	}
	at := ofDescriptor(fd)
	for _, list := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		if _, err := unix.Getxattr(at, list, nil); err != nil {
			continue // it has none
		}
		if err := unix.Removexattr(at, list); err != nil {
			return fmt.Errorf("remove the access control list: %w", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || fs.FileMode(st.Mode)&needs == needs {
		return err
	}
	return unix.Chmod(at, st.Mode&0o7777|uint32(needs))
}

// cannotChange reports whether a file system is read-only or a file belongs to a
// user that this process cannot act for.
func cannotChange(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM) }

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// emptyFD removes all that an open folder holds. A folder two levels below is
// moved up first, so that the depth of the tree needs no descriptors and no long
// paths. A folder that cannot be moved, as one of an image's layer, is emptied
// where it is.
func emptyFD(top *os.File) error {
	moved := 0
	return eachName(top, func(name string) error {
		isDir, err := unlink(int(top.Fd()), name)
		if err != nil || !isDir {
			return err
		}
		dir, err := openDir(int(top.Fd()), name)
		if err != nil {
			return err
		}
		defer dir.Close()
		err = eachName(dir, func(name string) error {
			isDir, err := unlink(int(dir.Fd()), name)
			if err != nil || !isDir {
				return err
			}
			for {
				moved++
				to := fmt.Sprintf(".turngate-removed-%d", moved)
				switch err := unix.Renameat2(int(dir.Fd()), name, int(top.Fd()), to, unix.RENAME_NOREPLACE); {
				case err == nil:
					return nil
				case errors.Is(err, unix.EEXIST):
					continue
				}
				break
			}
			inner, err := openDir(int(dir.Fd()), name)
			if err != nil {
				return err
			}
			defer inner.Close()
			if err := emptyFD(inner); err != nil {
				return err
			}
			return ignoreMissing(unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR))
		})
		if err != nil {
			return err
		}
		return ignoreMissing(unix.Unlinkat(int(top.Fd()), name, unix.AT_REMOVEDIR))
	})
}

// unlink removes a file or an empty folder. It reports a folder that is not
// empty.
func unlink(at int, name string) (isDir bool, err error) {
	err = ignoreMissing(unix.Unlinkat(at, name, 0))
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return false, err
	}
	err = ignoreMissing(unix.Unlinkat(at, name, unix.AT_REMOVEDIR))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return true, nil
	}
	return false, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// eachName calls f for each name in a folder until none is left. f removes it.
func eachName(dir *os.File, f func(name string) error) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(1000)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}
