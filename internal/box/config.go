package box

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Config is the configuration of a box. The box reads it at start from a file
// or a pipe that no other process of the sandbox can read.
type Config struct {
	Secret []byte `json:"secret"` // known to the worker and the box only
	// Socket is the path of the worker's unix socket in the sandbox. Empty: the
	// connection is already open as descriptor FD.
	Socket string `json:"socket,omitempty"`
	FD     int    `json:"fd,omitempty"`

	LifeMS int64 `json:"life_ms"` // the box ends itself and all processes after this time
	LostMS int64 `json:"lost_ms"` // the box ends itself this long after the worker's last sign of life

	User    string   `json:"user,omitempty"` // user of commands without one
	Workdir string   `json:"workdir"`
	Env     []string `json:"env,omitempty"` // variables of every command

	// DiskBytes limits the bytes written; the box watches them. 0: no watch.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// DiskSkip lists mount points that the watch leaves out.
	DiskSkip []string `json:"disk_skip,omitempty"`
	// Nest gives untrusted commands a process namespace of their own.
	Nest bool `json:"nest,omitempty"`
	// LoopbackUp brings the loopback interface up.
	LoopbackUp bool `json:"loopback_up,omitempty"`
	// OOMFD is a descriptor of the file that counts kills for lack of memory. 0:
	// the box opens the cgroup's own file.
	OOMFD   int      `json:"oom_fd,omitempty"`
	Rlimits []Rlimit `json:"rlimits,omitempty"`
}

// Rlimit is one limit in the form of setrlimit(2).
type Rlimit struct {
	Resource int    `json:"resource"`
	Max      uint64 `json:"max"`
}

// Exit codes of a box that ended early. The backend turns them into errors.
const (
	ExitConfig  = 90 // the configuration was unreadable
	ExitRoot    = 91 // the sandbox's root could not be made
	exitConnect = 92 // the box did not reach its worker
	exitLost    = 93 // the box lost its worker
	exitLife    = 94 // the box's life was over
)

// Signalled is added to the number of a signal in the exit code of a process that
// the signal ended.
const Signalled = 128

// Crashed reports whether a box with this exit code was ended from within its
// sandbox: by its own runtime, which lacked something, or by a signal other than
// SIGKILL, which only the host can send to it.
func Crashed(code int) bool {
	const runtimeFailed = 2
	return code == runtimeFailed || code > Signalled && code < Signalled+lastSignal && code != Signalled+int(unix.SIGKILL)
}

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
	if c.LoopbackUp {
		if err := loopbackUp(); err != nil {
			return err
		}
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

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
