package kernel

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Disk returns the bytes that programs can still write to the file system of a folder, and
// its size.
func Disk(dir string) (free, size int64, err error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(disk.Bavail) * disk.Bsize, int64(disk.Blocks) * disk.Bsize, nil //nolint:gosec // sizes of disks fit
}

// Pair returns two connected unix sockets, which no child process inherits.
func Pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// Replace makes the descriptor fd one of f's file. Child processes inherit it.
func Replace(fd int, f *os.File) error {
	if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
		return fmt.Errorf("replace descriptor %d: %w", fd, err)
	}
	return nil
}

// SyncDisk writes the file system of an open folder to its disk.
func SyncDisk(dir *os.File) error { return unix.Syncfs(int(dir.Fd())) }

// GiveUpAfter ends a TCP connection when its other side has acknowledged nothing for d.
func GiveUpAfter(fd uintptr, d time.Duration) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// DropInput drops the unread keys of a terminal.
func DropInput(terminal int) error { return unix.IoctlSetInt(terminal, unix.TCFLSH, unix.TCIFLUSH) }

// SocketPath returns a path of a file in an open folder, for system calls that take short
// paths only. It is one until release is called or the folder is closed.
func SocketPath(dir *os.File, name string) (path string, release func(), err error) {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name), func() {}, nil
}
