package chaos_test

import "golang.org/x/sys/unix"

// peerOf returns the process at the other end of a unix socket; 0: none is known.
func peerOf(fd int) int {
	pid, err := unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	if err != nil {
		return 0
	}
	return pid
}
