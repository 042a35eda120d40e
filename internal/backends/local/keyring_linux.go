package local

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// startWithKeyring starts a command with a new session keyring, so that it does
// not share the one of this process. A keyring belongs to a thread and the command
// inherits it from the thread that forks, so all threads of the command have it.
func startWithKeyring(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		// A name that is a null pointer makes a keyring that no process can join.
		_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
		// A kernel without keyrings, and the filter of a container that denies them,
		// keep them from the command, too.
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
			done <- fmt.Errorf("make a session keyring: %w", err)
			return
		}
		done <- cmd.Start()
	}()
	return <-done
}
