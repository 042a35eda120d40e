//go:build faults

package crash

import (
	"fmt"
	"os"
	"syscall"
)

// Here kills the process if the test wants it to die at this point.
func Here(point string) {
	if os.Getenv(EnvPoint) == point {
		fmt.Fprintf(os.Stderr, "crash: %s\n", point)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// Broken reports whether the test wants a rule to be broken.
func Broken(rule string) bool { return os.Getenv(EnvBreak) == rule }
