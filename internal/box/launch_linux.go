package box

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultCaps are the capabilities of a command that runs as root: Docker's
// default set without NET_RAW and MKNOD. Any other user gets none.
func defaultCaps() []int {
	return []int{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID,
		unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_AUDIT_WRITE, unix.CAP_SETFCAP,
	}
}

// launcher starts processes from one locked thread. The capability bounding
// set, no_new_privs and the filter of system calls belong to a thread, and the
// processes that it forks inherit them. Only this thread of the box has them.
type launcher struct {
	jobs chan launch
}

type launch struct {
	argv0 string
	argv  []string
	attr  *syscall.ProcAttr
	done  chan<- launched
}

type launched struct {
	pid int
	err error
}

// newLauncher makes a launcher. Its processes have no capabilities beyond keep. If
// fenced is set, they cannot change the limits and the priority of others.
func newLauncher(keep []int, fenced bool) (*launcher, error) {
	l := &launcher{jobs: make(chan launch)}
	ready := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := dropBounding(keep)
		if err == nil {
			err = restrictSystemCalls(fenced)
		}
		ready <- err
		if err != nil {
			return
		}
		for j := range l.jobs {
			pid, err := syscall.ForkExec(j.argv0, j.argv, j.attr)
			j.done <- launched{pid, err}
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return l, nil
}

func (l *launcher) start(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
	done := make(chan launched, 1)
	l.jobs <- launch{argv0, argv, attr, done}
	r := <-done
	return r.pid, r.err
}

func dropBounding(keep []int) error {
	kept := map[int]bool{}
	for _, c := range keep {
		kept[c] = true
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil || has == 0 || kept[c] { // EINVAL: this kernel does not know the capability
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// setgroupsDenied reports whether this user namespace cannot change groups.
func setgroupsDenied() bool {
	data, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(data)) == "deny"
}
