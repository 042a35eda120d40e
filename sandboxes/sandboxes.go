// Package sandboxes says what a sandbox is. The backends are in its folders;
// sandboxtest holds all of them to this contract.
package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes of one kind. It is safe for concurrent use.
type Backend interface {
	// Name is what a request says to get this backend.
	Name() string
	// Check says whether sandboxes can be made here now; the error says what
	// to allow, install or start.
	Check(ctx context.Context) error
	// Create makes a sandbox that is ready to start processes. On error
	// nothing is left behind. A limit that cannot be enforced is refused with
	// an *UnsupportedError before anything is made.
	Create(ctx context.Context, s Spec) (Sandbox, error)
	// Sweep removes what earlier processes of this owner left, except
	// rollouts that keep says are alive, and says how many it removed.
	Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error)
}

// Sandbox is one place to run an agent in. Methods are safe for concurrent
// use until Close.
type Sandbox interface {
	// Start runs a command. The context bounds the start, not the process.
	Start(ctx context.Context, c Cmd) (Process, error)
	// Files reaches the sandbox's files.
	Files() Files
	// Forward makes h reachable for processes in the sandbox and returns its
	// URL there, such as http://127.0.0.1:4000. One handler per sandbox.
	Forward(ctx context.Context, h http.Handler) (baseURL string, err error)
	// KillAll ends every process in the sandbox but its own helper and
	// returns when none is left.
	KillAll(ctx context.Context) error
	// Freeze stops every process where it is; Thaw lets them go on. Time in
	// between counts for no limit.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
	// Workdir is the working directory of commands that name none.
	Workdir() string
	// Close ends every process and removes everything, frozen or not. It is
	// idempotent.
	Close(ctx context.Context) error
}

// Process is one started command.
type Process interface {
	// Wait returns how the command ended, after all its output was written to
	// the Cmd's writers. The error is a failure of the sandbox, such as
	// ErrLost; the agent's own failure is in the Exit.
	Wait() (schema.Exit, error)
	// Signal sends a signal to the command's process group. SIGKILL ends the
	// whole tree that the command started. A frozen sandbox may not answer
	// before the context ends.
	Signal(ctx context.Context, s os.Signal) error
}

// Files reads and writes in the sandbox with the sandbox's own root rights.
// Paths are absolute. Missing files give fs.ErrNotExist.
type Files interface {
	// Read returns the content of a regular file of at most limit bytes;
	// larger ones give a *TooLargeError.
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
	// Write makes or replaces a file, its parents included. owner is a user of
	// the sandbox; empty means the one of commands that name none.
	Write(ctx context.Context, path string, data []byte, mode fs.FileMode, owner string) error
	Stat(ctx context.Context, path string) (FileInfo, error)
	List(ctx context.Context, dir string) ([]FileInfo, error)
	Mkdir(ctx context.Context, dir string, mode fs.FileMode, owner string) error
	// Remove removes a file or a tree. A path that is not there is no error.
	Remove(ctx context.Context, path string) error
	// TarIn unpacks a tar stream below dir, which is made if missing. Nothing
	// is written outside dir, whatever the archive or links in dir say.
	TarIn(ctx context.Context, dir string, r io.Reader, owner string) error
	// TarOut writes the regular files and directories below path as a tar
	// stream of at most limit bytes.
	TarOut(ctx context.Context, path string, w io.Writer, limit int64) error
}

// FileInfo describes one file.
type FileInfo struct {
	Name string      `json:"name"`
	Size int64       `json:"size"`
	Mode fs.FileMode `json:"mode"`
}

// Spec says what a sandbox is to be. A limit of 0 asks for none.
type Spec struct {
	Owner   string // the worker; sweeps go by it
	Rollout schema.ID
	Attempt int

	Image    string // docker: an image reference
	BuildTar []byte // docker: a build context with a Dockerfile, as tar, instead of Image
	Network  string // see schema.NetworkNone

	CPUs        float64
	MemoryBytes int64
	DiskBytes   int64
	Pids        int64
	GPUs        int

	User    string            // user of commands that name none; default: the image's, or root
	Workdir string            // default: the image's, or /workspace
	Env     map[string]string // of every command
	Mounts  []Mount

	Ready time.Duration // how long it may take to come up
	Life  time.Duration // after which it ends by itself
	Lost  time.Duration // after which it ends by itself without its worker
}

// Mount shows a file or folder of the host in the sandbox, read-only.
type Mount struct{ Host, Guest string }

// Cmd is one command.
type Cmd struct {
	Args    []string          // argv; Args[0] is looked up in the command's PATH
	Env     map[string]string // on top of the Spec's
	Dir     string            // default: the sandbox's Workdir, made if missing
	User    string            // default: the Spec's
	Stdin   io.Reader         // nil: empty
	Stdout  io.Writer         // nil: dropped
	Stderr  io.Writer
	Timeout time.Duration // 0: none; then its whole tree is killed
	// OutputLimit bounds each of Stdout and Stderr in bytes; what comes later
	// is dropped and counted. 0 means 64 MiB.
	OutputLimit int64
	// Untrusted marks the agent: backends that can give it a process
	// namespace of its own.
	Untrusted bool
}

// HelperPath is where every sandbox has the turngate binary.
const HelperPath = "/.turngate/turngate"

// DefaultWorkdir is the working directory where neither the request nor the
// image names one.
const DefaultWorkdir = "/workspace"

// ErrLost means that the sandbox is gone: its helper ended or was killed.
var ErrLost = errors.New("the sandbox is gone")

// UnsupportedError refuses, by name, something that was asked for.
type UnsupportedError struct {
	Field  string // of the request, such as "sandbox.disk_bytes"
	Value  string
	Reason string // why, and what would help
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: %s is not possible here: %s", e.Field, e.Value, e.Reason)
}

// NoCommandError means that a command could not be started at all.
type NoCommandError struct {
	Arg    string
	Reason string
}

func (e *NoCommandError) Error() string { return fmt.Sprintf("start %q: %s", e.Arg, e.Reason) }

// ImageError means that the image is not there or cannot be built.
type ImageError struct {
	Image  string
	Reason string
}

func (e *ImageError) Error() string { return fmt.Sprintf("image %s: %s", e.Image, e.Reason) }

// TooLargeError means that a file exceeds what may be read.
type TooLargeError struct {
	Path  string
	Limit int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s is larger than %d bytes", e.Path, e.Limit)
}

// GPUsUnsupported is what backends without GPUs answer.
func GPUsUnsupported(n int) error {
	return &UnsupportedError{Field: "sandbox.gpus", Value: fmt.Sprint(n), Reason: "this backend offers no GPU"}
}

// Delivery tells a handler whether what it wrote reached the other end of a
// forwarded connection. Forward puts one into each request's context.
type Delivery interface {
	// OnSettled calls f once after the response is complete: delivered says
	// whether every byte was written to the client's socket.
	OnSettled(f func(delivered bool))
}

type deliveryKey struct{}

// WithDelivery returns a context that carries d.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the Delivery of a forwarded request, if it has one.
func DeliveryFrom(ctx context.Context) (Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(Delivery)
	return d, ok
}
