package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
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
	return int64(disk.Bavail) * int64(disk.Bsize), int64(disk.Blocks) * int64(disk.Bsize), nil //nolint:gosec // sizes of disks fit
}

// Pair returns two connected unix sockets, which no child process inherits.
func Pair() (a, b *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// Replace makes the descriptor fd one of f's file. Child processes inherit it.
func Replace(fd int, f *os.File) error {
	if err := unix.Dup2(int(f.Fd()), fd); err != nil {
		return fmt.Errorf("replace descriptor %d: %w", fd, err)
	}
	return nil
}

// SyncDisk writes all file systems to their disks: macOS has no call for one.
func SyncDisk(*os.File) error { return unix.Sync() }

// GiveUpAfter ends a TCP connection when its other side has acknowledged nothing for d. macOS
// counts whole seconds.
func GiveUpAfter(fd uintptr, d time.Duration) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RXT_CONNDROPTIME, int(d.Seconds()))
}

// DropInput drops the unread keys of a terminal.
func DropInput(terminal int) error {
	const read = 1 // FREAD
	return unix.IoctlSetPointerInt(terminal, unix.TIOCFLUSH, read)
}

// maxSocketPath is the most bytes of a socket's path.
const maxSocketPath = 103

// SocketPath returns a path of a file in an open folder, for system calls that take short
// paths only. It is one until release is called or the folder is closed. A long one is
// reached by a link in a folder of this user in /tmp.
func SocketPath(dir *os.File, name string) (path string, release func(), err error) {
	at, err := filepath.Abs(dir.Name())
	if err != nil {
		return "", nil, err
	}
	if path := filepath.Join(at, name); len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	short, err := os.MkdirTemp("/tmp", "turngate-")
	if err != nil {
		return "", nil, err
	}
	release = func() { _ = os.RemoveAll(short) }
	link := filepath.Join(short, "d")
	if err := os.Symlink(at, link); err != nil {
		release()
		return "", nil, err
	}
	return filepath.Join(link, name), release, nil
}
