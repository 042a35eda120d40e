//go:build !faults

package crash

// Here does nothing in this build.
func Here(string) {}
