package box

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fence makes this process undumpable and the reaper of orphans, sets the limits
// that all commands inherit, and brings loopback up if the configuration says so.
func (c *Config) fence() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	limits := append([]Rlimit{{unix.RLIMIT_CORE, 0}}, c.Rlimits...)
	for _, l := range limits {
		if err := unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: l.Max, Max: l.Max}); err != nil {
			return fmt.Errorf("set limit %d to %d: %w", l.Resource, l.Max, err)
		}
	}
	if err := boundPending(); err != nil {
		return err
	}
	if c.LoopbackUp {
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	return nil
}

// pendingSignals is the soft limit of signals that wait, of a user's processes together.
const pendingSignals = 1024

// boundPending bounds the signals that wait for this process. While a thread starts a
// process it blocks all signals, and then the kernel keeps the ignored ones, too. It goes
// through all that wait each time that it delivers one: with its usual limit of a hundred
// thousand, four processes that send signals keep a thread from anything else. Commands
// have the same limit and can raise it.
func boundPending() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &limit); err != nil {
		return fmt.Errorf("read the limit of pending signals: %w", err)
	}
	limit.Cur = min(limit.Cur, pendingSignals)
	if err := unix.Setrlimit(unix.RLIMIT_SIGPENDING, &limit); err != nil {
		return fmt.Errorf("bound the pending signals: %w", err)
	}
	return nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}
