package box

import (
	"fmt"
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
