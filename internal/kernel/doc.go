// Package kernel has the system calls that differ between Linux and macOS.
package kernel
