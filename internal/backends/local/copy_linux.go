package local

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// inode is a file with several names.
type inode struct{ dev, ino uint64 }

// copyTree copies the content of a folder, with owners, modes and times. It follows no link.
func copyTree(from, to string) error {
	names := map[inode]string{} // the copies of files with several names
	var folders []string
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, name)
		if e.IsDir() {
			folders = append(folders, name)
			if name == "." {
				return nil
			}
			return os.Mkdir(at, 0o700)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		if st.Nlink > 1 {
			if first, ok := names[inode{st.Dev, st.Ino}]; ok {
				return os.Link(first, at)
			}
			names[inode{st.Dev, st.Ino}] = at
		}
		switch e.Type() {
		case 0:
			err = copyFile(path, at)
		case fs.ModeSymlink:
			var target string
			if target, err = os.Readlink(path); err == nil {
				err = os.Symlink(target, at)
			}
		case fs.ModeNamedPipe:
			err = unix.Mkfifo(at, 0o600)
		default:
			return nil // sockets and devices
		}
		return errors.Join(err, copyAttributes(path, at))
	})
	for i := len(folders) - 1; i >= 0 && err == nil; i-- { // their times change with their files
		err = copyAttributes(filepath.Join(from, folders[i]), filepath.Join(to, folders[i]))
	}
	return err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// copyAttributes gives a file the owner, the mode and the time of another one.
func copyAttributes(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	if err := unix.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return &fs.PathError{Op: "chown", Path: to, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return &fs.PathError{Op: "chmod", Path: to, Err: err}
		}
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "set the time of", Path: to, Err: err}
	}
	return nil
}
