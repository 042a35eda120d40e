package box

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

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
