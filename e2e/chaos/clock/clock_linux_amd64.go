package clock

import (
	"sync/atomic"
	_ "unsafe" // for the name in the runtime
)

// sym is the runtime's pointer to the kernel's clock_gettime, which the runtime
// calls for each time.Now. Go keeps this name for programs outside the runtime.
//
//go:linkname sym runtime.vdsoClockgettimeSym
var sym uintptr //nolint:gochecknoglobals // the runtime's own

var (
	vdso    uintptr //nolint:gochecknoglobals // the kernel's function, for the assembly
	seconds int64   //nolint:gochecknoglobals // added to the wall clock, for the assembly
)

func gettimeAddress() uintptr

func step(s int64) error {
	atomic.AddInt64(&seconds, s)
	real := atomic.LoadUintptr(&sym)
	if real == 0 {
		return ErrUnsupported // without a vDSO the runtime calls the kernel itself
	}
	if real != gettimeAddress() {
		atomic.StoreUintptr(&vdso, real)
		atomic.StoreUintptr(&sym, gettimeAddress())
	}
	return nil
}
