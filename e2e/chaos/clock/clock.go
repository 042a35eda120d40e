// Package clock steps the wall clock of this process, so that every time.Now
// returns the new time. The monotonic clock goes on, as on a host after a change
// of its clock.
//
// A program cannot do this to a Go program from outside: libfaketime replaces
// functions of the C library, which a Go program does not call for its time, and a
// time namespace has no offset for the wall clock. So Step puts a function between
// the Go runtime and the kernel's vDSO. It covers neither other processes nor the
// times of files.
package clock

import (
	"errors"
	"time"
)

// ErrUnsupported occurs in Step on all systems except Linux on amd64, and where the
// kernel has no vDSO.
var ErrUnsupported = errors.New("the wall clock can be stepped only on Linux on amd64")

// Step moves the wall clock by d, rounded to the nearest second.
func Step(d time.Duration) error { return step(int64(d.Round(time.Second) / time.Second)) }
