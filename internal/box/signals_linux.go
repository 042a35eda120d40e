package box

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropSignals makes this process survive all signals that end a process, except keep.
// Go's own handlers would take a queued SIGSEGV, with any content, for a fault of this
// program and end it. The default action is no way: the kernel drops such a signal of a
// child of the first process of a namespace only if the thread that it is sent to does not
// block it. Threads of Go's runtime block signals, and each thread does while it starts a
// process.
//
// Commands begin with the default actions. Go sets them in a child for each signal for
// which it has had a handler, and the kernel for each signal with a function as action.
func dropSignals(keep ...syscall.Signal) {
	handled := make(chan os.Signal, 1)
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		switch {
		case n == syscall.SIGKILL, n == syscall.SIGSTOP, slices.Contains(keep, n), slices.Contains(jobControl(), n):
		case slices.Contains(ofLibraries(), n):
			if changeAction(n, nil).handler > ignore {
				break // without cgo, Go has a handler for 33, which does no harm
			}
			act := changeAction(syscall.SIGURG, nil) // Go handles it always; its flags make a handler run on Go's stack for signals
			act.handler = returning()
			changeAction(n, &act)
		default:
			signal.Notify(handled, n) // a handler, even for a signal that this process was started to ignore
			changeAction(n, &action{handler: ignore})
		}
	}
}

// jobControl are signals of which no default action ends a process. The kernel does not
// deliver them to the first process of a namespace.
func jobControl() []syscall.Signal {
	return []syscall.Signal{syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}
}

// ofLibraries are the signals that the libraries of C use themselves. signal.Notify does
// nothing for them.
func ofLibraries() []syscall.Signal { return []syscall.Signal{32, 33, 34} }

// action is the kernel's struct sigaction.
type action struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const ignore = 1 // SIG_IGN

// changeAction returns the action of a signal and sets another one, unless it is nil. The
// kernel refuses no action of the signals of dropSignals.
func changeAction(n syscall.Signal, to *action) (was action) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(&was)), unsafe.Sizeof(was.mask), 0, 0)
	return was
}

// returning is the address of a signal handler that returns at once. It is no function of
// Go, since those need a stack of Go.
func returning() uintptr

// passedOn are the signals that reach the command of a nested namespace.
func passedOn() []syscall.Signal {
	return []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
}

// passOn passes signals of the first process of a nested namespace on to the command until
// it ends, and returns its status. Later signals stay in the channel, or are dropped.
func (j *job) passOn(caught <-chan os.Signal) syscall.WaitStatus {
	for {
		select {
		case s := <-caught:
			if n, ok := s.(syscall.Signal); ok {
				j.signal(n)
			}
		case status := <-j.exited:
			return status
		}
	}
}
