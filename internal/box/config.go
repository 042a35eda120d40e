package box

import (
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// Config is the configuration of a box. The box reads it at start from a file
// or a pipe that no other process of the sandbox can read.
type Config struct {
	Secret []byte `json:"secret"` // known to the worker and the box only
	// Socket is the path of the worker's unix socket in the sandbox. Empty: the
	// connection is already open, as descriptor FD or as Stdio.
	Socket string `json:"socket,omitempty"`
	FD     int    `json:"fd,omitempty"`
	// Stdio means that the connection is standard input, after this configuration,
	// and standard output.
	Stdio bool `json:"stdio,omitempty"`
	// Ahead has the bytes of the connection that were read with the configuration.
	Ahead io.Reader `json:"-"`

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

// Threads is the number of threads of the box and of the first process of one nested
// namespace. The limit of processes of a sandbox is larger by this number.
const Threads = boxThreads + nestedThreads

const (
	boxThreads    = 32
	nestedThreads = 16
)

// Exit codes of a box that ended early. The backend turns them into errors.
const (
	ExitConfig  = 90 // the configuration was unreadable
	ExitRoot    = 91 // the sandbox's root could not be made
	exitConnect = 92 // the box did not reach its worker
	exitLost    = 93 // the box lost its worker
	exitLife    = 94 // the box's life was over
)

// lastSignal is the highest number of a signal of Linux.
const lastSignal = 64

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

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
