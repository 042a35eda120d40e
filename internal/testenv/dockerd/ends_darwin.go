package dockerd

import "syscall"

// endsWithThread has no counterpart on macOS, which has no dockerd.
func endsWithThread() *syscall.SysProcAttr { return nil }
