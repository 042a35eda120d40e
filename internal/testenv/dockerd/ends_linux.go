package dockerd

import "syscall"

// endsWithThread are the attributes of a process that gets SIGTERM when the thread that
// started it ends.
func endsWithThread() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
