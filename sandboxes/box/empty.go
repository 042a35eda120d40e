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

// removeAll removes a file or a tree of any depth. A missing path is no error.
func removeAll(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		if err := emptyDir(path); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// makeEmpty makes dir an empty folder of its own. A link, or a file, in the
// place of dir or of a folder above it is replaced by a folder; no link is
// followed. A mount stays and loses its content. If others may search dir, they
// may search the folders above it, too, except for those that cannot be changed.
// Access control lists are removed.
func makeEmpty(dir string, mode fs.FileMode, owner *account) error {
	dir = filepath.Clean(dir)
	if !filepath.IsAbs(dir) || dir == "/" {
		return fmt.Errorf("%s is not an absolute path below /", dir)
	}
	needs := mode & 0o111
	if os.Geteuid() != 0 {
		needs |= 0o700 // a user who is not root needs them to change what is inside
	}
	at := ""
	for part := range strings.SplitSeq(dir[1:], "/") {
		at += "/" + part
		info, err := os.Lstat(at)
		if err == nil && info.IsDir() {
			err := reopen(at, info.Mode().Perm()|needs)
			if at != dir && cannotChange(err) {
				err = nil // a folder above that neither this box nor the agent can change
			}
			if err != nil {
				return err
			}
			continue
		}
		if err == nil {
			err = os.Remove(at)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := os.Lchown(at, int(owner.uid), int(owner.gid)); err != nil {
			return err
		}
	}
	if err := emptyDir(dir); err != nil {
		return err
	}
	if err := chmodDir(dir, mode); err != nil {
		return err
	}
	return os.Lchown(dir, int(owner.uid), int(owner.gid))
}

// reopen gives a folder these permissions and no access control lists. It changes
// only what differs: the root of an image may be read-only.
func reopen(dir string, mode fs.FileMode) error {
	for _, list := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		if _, err := unix.Lgetxattr(dir, list, nil); err != nil {
			continue // it has none
		}
		if err := unix.Lremovexattr(dir, list); err != nil {
			return &fs.PathError{Op: "remove the access control list of", Path: dir, Err: err}
		}
	}
	info, err := os.Lstat(dir)
	if err != nil || info.Mode().Perm()&mode == mode {
		return err
	}
	return chmodDir(dir, info.Mode()&^fs.ModePerm|mode)
}

// cannotChange reports whether a file system is read-only or a file belongs to a
// user that this process cannot act for.
func cannotChange(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM) }

// chmodDir changes the permissions of a folder. It follows no link in the place of
// the folder.
func chmodDir(path string, mode fs.FileMode) error {
	dir, err := openDir(unix.AT_FDCWD, path)
	if err == nil {
		defer dir.Close()
		return dir.Chmod(mode)
	}
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	// Its owner, who is not root, may not read it.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode) // fchmod refuses such a descriptor
}

// emptyDir removes all that a folder holds.
func emptyDir(path string) error {
	dir, err := openDir(unix.AT_FDCWD, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := emptyFD(dir); err != nil {
		return &fs.PathError{Op: "empty", Path: path, Err: err}
	}
	return nil
}

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
		isDir, err := unlink(top, name)
		if err != nil || !isDir {
			return err
		}
		dir, err := openDir(int(top.Fd()), name)
		if err != nil {
			return err
		}
		defer dir.Close()
		err = eachName(dir, func(name string) error {
			isDir, err := unlink(dir, name)
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
func unlink(dir *os.File, name string) (isDir bool, err error) {
	err = ignoreMissing(unix.Unlinkat(int(dir.Fd()), name, 0))
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return false, err
	}
	err = ignoreMissing(unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR))
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
