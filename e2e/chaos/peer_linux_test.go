package chaos_test

import "golang.org/x/sys/unix"

// peerOf returns the process at the other end of a unix socket; 0: none is known.
func peerOf(fd int) int {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}
