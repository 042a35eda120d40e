package box

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what a box is given when it starts, by a file or a pipe that
// nothing else in the sandbox ever sees.
type Config struct {
	Secret []byte `json:"secret"` // proves each side to the other
	// Socket is the worker's unix socket as seen in the sandbox. Empty: the
	// connection is already open as descriptor FD.
	Socket string `json:"socket,omitempty"`
	FD     int    `json:"fd,omitempty"`

	LifeMS int64 `json:"life_ms"` // the box ends itself and everything after this
	LostMS int64 `json:"lost_ms"` // ... or this long after the worker's last sign

	User    string   `json:"user,omitempty"` // of commands that name none
	Workdir string   `json:"workdir"`
	Env     []string `json:"env,omitempty"` // of every command

	// Nest gives untrusted commands a process namespace of their own.
	Nest bool `json:"nest,omitempty"`
	// LoopbackUp brings the loopback interface up.
	LoopbackUp bool `json:"loopback_up,omitempty"`
	// OOMFile counts kills for want of memory: a path in the sandbox, or
	// descriptor OOMFD.
	OOMFD   int      `json:"oom_fd,omitempty"`
	Rlimits []Rlimit `json:"rlimits,omitempty"`
}

// Rlimit is one limit as setrlimit(2) takes it.
type Rlimit struct {
	Resource int    `json:"resource"`
	Max      uint64 `json:"max"`
}

// Exit codes of a box that could not do its work; the backend turns them into
// words.
const (
	ExitConfig  = 90 // its configuration was unreadable
	ExitRoot    = 91 // the sandbox's own root could not be made
	ExitConnect = 92 // it did not reach its worker
	ExitLost    = 93 // it lost its worker
	ExitLife    = 94 // its time was over
)

// fence makes this process one that nothing else in the sandbox can look
// into, and applies what all commands inherit.
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
