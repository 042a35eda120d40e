package reach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/internal/rawjson"
)

const (
	lockName   = "lock"
	socketName = "socket"
	leftName   = "left.json"
)

// Root returns the folder of all hosts of this user on this machine.
func Root() string {
	return filepath.Join(os.TempDir(), "turngate-"+strconv.Itoa(os.Geteuid()))
}

// checkRoot makes the folder of all hosts. Another user can make a folder of this name
// first, so it refuses one that others can use.
func checkRoot(root string) error {
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the folder of sandboxes: %w", err)
	}
	info, err := os.Lstat(root)
	if err != nil {
		return fmt.Errorf("look at the folder of sandboxes: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a folder of this user alone: remove it, or name another folder in TMPDIR", root)
	}
	return nil
}

// lock locks a file; nil: another process has the lock. The lock ends when the file is
// closed.
func lock(path string, wait bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock a folder of sandboxes: %w", err)
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// atSocket calls f with a path of the socket in a folder. A path of a socket has at most
// about a hundred bytes, and the folder's may be longer, so f gets a short one.
func atSocket[T any](dir string, f func(path string) (T, error)) (T, error) {
	d, err := os.Open(dir)
	if err != nil {
		var none T
		return none, err
	}
	defer d.Close()
	path, release, err := kernel.SocketPath(d, socketName)
	if err != nil {
		var none T
		return none, err
	}
	defer release()
	return f(path)
}

// writeLine sends one value.
func writeLine(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a line: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// readLine receives one value. It reads no byte after the line.
func readLine(r io.Reader, v any) error {
	var line []byte
	one := make([]byte, 1)
	for len(line) < maxLine {
		if _, err := io.ReadFull(r, one); err != nil {
			return err
		}
		if one[0] == '\n' {
			return rawjson.Plain(json.Unmarshal(line, v))
		}
		line = append(line, one[0])
	}
	return fmt.Errorf("a line has more than %d bytes", maxLine)
}

// halfCloser can end one direction.
type halfCloser interface{ CloseWrite() error }

// splice copies both ways until the box has ended the stream or the other side has gone.
func splice(conn net.Conn, stream net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(stream, conn)
		stream.Close() // the box ends an operation after its caller has gone
	}()
	_, _ = io.Copy(conn, stream)
	if c, ok := conn.(halfCloser); ok {
		_ = c.CloseWrite()
	}
	conn.Close()
	<-done
}

// Sweep removes the folders of hosts that were killed. For each with a note (see
// Host.Note), clean removes the rest; if it fails, the folder stays for a later Sweep.
func Sweep(root string, clean func(dir string, note json.RawMessage) error) error {
	if _, err := os.Lstat(root); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := checkRoot(root); err != nil {
		return err
	}
	dead, err := dead(root)
	if err != nil {
		return err
	}
	var failed []error
	for dir, held := range dead {
		note, err := os.ReadFile(filepath.Join(dir, leftName))
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = nil
		case err == nil:
			err = clean(dir, bytes.TrimSpace(note))
		}
		if err == nil {
			err = os.RemoveAll(dir)
		}
		failed = append(failed, err)
		held.Close()
	}
	return errors.Join(failed...)
}

// dead returns the folders of processes that have ended, with their locks.
func dead(root string) (map[string]*os.File, error) {
	all, err := lock(filepath.Join(root, lockName), true)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	dirs, err := hosts(root)
	if err != nil {
		return nil, err
	}
	out := map[string]*os.File{}
	for _, dir := range dirs {
		held, err := lock(filepath.Join(dir, lockName), false)
		if err == nil && held != nil {
			out[dir] = held
		}
	}
	return out, nil
}

// hosts returns the folders of hosts.
func hosts(root string) ([]string, error) {
	list, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the folders of sandboxes: %w", err)
	}
	var out []string
	for _, e := range list {
		if e.IsDir() {
			out = append(out, filepath.Join(root, e.Name()))
		}
	}
	return out, nil
}
