package box

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreSignals makes the box deaf: the kernel keeps SIGKILL and SIGSTOP of
// its children from a namespace's first process, and this keeps the rest.
func ignoreSignals() {
	all := make(chan os.Signal, 16)
	signal.Notify(all)
	signal.Reset(syscall.SIGCHLD, syscall.SIGURG)
	go func() {
		for range all { //nolint:revive // nothing is done with them
		}
	}()
}

// forwardSignals passes what a nested namespace's first process is sent on to
// the command, until stop.
func forwardSignals(j *job) (stop func()) {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
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
