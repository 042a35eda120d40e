//go:build faults

package crash

import (
	"fmt"
	"os"
	"syscall"
	"time"
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

// Skew is how far the clock of this process is wrong.
func Skew() time.Duration {
	d, _ := time.ParseDuration(os.Getenv(EnvSkew)) // none is right
	return d
}
