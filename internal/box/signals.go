package box

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastSignal is the highest number of a signal.
const lastSignal = 64

// dropSignals gives all signals except keep their default action. The kernel
// drops such a signal of a child of the first process of a namespace, and
// SIGKILL and SIGSTOP, too. Go's own handlers would take a queued SIGSEGV, with
// any content, for a fault of this program and end it.
func dropSignals(keep ...syscall.Signal) {
	var action [4]uint64 // a struct sigaction of the kernel; all zero is SIG_DFL
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if n == syscall.SIGKILL || n == syscall.SIGSTOP || slices.Contains(keep, n) {
			continue
		}
		// It fails for no signal.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	}
}

// passedOn are the signals that reach the command of a nested namespace.
func passedOn() []syscall.Signal {
	return []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
}

// forwardSignals passes signals of the first process of a nested namespace on
// to the command, until stop is called.
func forwardSignals(j *job) (stop func()) {
	ch := make(chan os.Signal, 16)
	for _, s := range passedOn() {
		signal.Notify(ch, s)
	}
	go func() {
		for s := range ch {
			if n, ok := s.(syscall.Signal); ok {
				j.signal(n)
			}
		}
	}()
	return func() {
		signal.Stop(ch)
		close(ch)
	}
}
