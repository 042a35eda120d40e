//go:build !faults

package crash

import "time"

// Here kills the process if the test wants it to die at this point.
func Here(string) {}

// Broken reports whether the test wants a rule to be broken.
func Broken(string) bool { return false }

// Skew is how far the clock of this process is wrong.
func Skew() time.Duration { return 0 }
