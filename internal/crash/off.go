//go:build !faults

package crash

// Here kills the process if the test wants it to die at this point.
func Here(string) {}

// Broken reports whether the test wants a rule to be broken.
func Broken(string) bool { return false }
