package box

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

// openTerminal opens a terminal of the sandbox. user is the end for the command, which
// belongs to its account.
func openTerminal(size sandboxes.TerminalSize, acct account) (ours, user *os.File, err error) {
	const path = "/dev/pts/ptmx"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %s: %w", path, err)
	}
	ours = os.NewFile(uintptr(fd), path)
	defer func() {
		if err != nil {
			ours.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock a terminal: %w", err)
	}
	if err := setSize(fd, size); err != nil {
		return nil, nil, err
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, fmt.Errorf("open the command's end of a terminal: %w", errno)
	}
	user = os.NewFile(peer, "terminal")
	if err := user.Chown(int(acct.uid), -1); err != nil {
		user.Close()
		return nil, nil, fmt.Errorf("give the terminal to its user: %w", err)
	}
	return ours, user, nil
}

func setSize(fd int, s sandboxes.TerminalSize) error {
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols}); err != nil {
		return fmt.Errorf("set the size of a terminal: %w", err)
	}
	return nil
}

// encodeSize is the payload of a resize frame.
func encodeSize(s sandboxes.TerminalSize) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Rows), s.Cols)
}

// decodeSize returns false if the payload is not of encodeSize.
func decodeSize(b []byte) (s sandboxes.TerminalSize, ok bool) {
	if len(b) != 4 {
		return s, false
	}
	return sandboxes.TerminalSize{Rows: binary.BigEndian.Uint16(b), Cols: binary.BigEndian.Uint16(b[2:])}, true
}

// typed is the stdin of a command with a terminal. Its end is the key Ctrl-D, because
// the output comes from the same file.
type typed struct{ terminal *os.File }

func (t typed) Write(p []byte) (int, error) { return t.terminal.Write(p) }

func (t typed) Close() error {
	_, err := io.WriteString(t.terminal, "\x04")
	return err
}

// resize changes the size; the command gets SIGWINCH. A terminal that is closed has no
// size to change.
func (t typed) resize(s sandboxes.TerminalSize) {
	if c, err := t.terminal.SyscallConn(); err == nil { // Fd would end the deadlines of the file
		_ = c.Control(func(fd uintptr) { _ = setSize(int(fd), s) })
	}
}
