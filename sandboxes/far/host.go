package far

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Digest returns the sha256 of a file as hex digits.
func Digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read turngate's own program: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Owner is the owner's name on the other hosts, where workers of several hosts
// may have the same name and state folder.
func Owner(owner string) string {
	name, _ := os.Hostname() // without a name the worker's own must do
	sum := sha256.Sum256([]byte(name))
	return owner + "-" + hex.EncodeToString(sum[:4])
}

// Pair returns a connection and the other end of it.
func Pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[0]), "host")
	file := os.NewFile(uintptr(fds[1]), "worker")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}
