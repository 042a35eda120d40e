package box

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreSignals discards signals. The kernel protects the first process of a
// namespace from SIGKILL and SIGSTOP of its children; this function handles all
// other signals.
func ignoreSignals() {
	all := make(chan os.Signal, 16)
	signal.Notify(all)
	signal.Reset(syscall.SIGCHLD, syscall.SIGURG)
	go func() {
		for range all { //nolint:revive // discarded
		}
	}()
}

// forwardSignals passes signals of the first process of a nested namespace on
// to the command, until stop is called.
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
