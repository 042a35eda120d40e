// Package sandboxes defines the interfaces of a sandbox and its backend. Its
// sub-folders contain the backends; sandboxtest tests each of them against this
// contract.
package sandboxes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes of one kind. It is safe for concurrent use.
type Backend interface {
	// Name is the value of sandbox.backend in a request that selects this
	// backend.
	Name() string
	// Check reports whether this host can make sandboxes now. The error names the
	// setting, package or service that is missing.
	Check(ctx context.Context) error
	// Create makes a sandbox that is ready to start processes. On error it leaves
	// nothing behind. If the backend cannot enforce a limit, it calls
	// Spec.Weaken: Create then notes a weak limit, and refuses a strict one with
	// an *UnsupportedError before it starts the sandbox.
	Create(ctx context.Context, s Spec) (Sandbox, error)
	// Sweep removes the sandboxes that earlier processes of this owner left and
	// returns their number. It spares rollouts for which keep returns true.
	Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error)
}

// Sandbox is one isolated place to run commands in. Its methods are safe for
// concurrent use until Close.
type Sandbox interface {
	// Start runs a command. The context bounds the start, not the process.
	Start(ctx context.Context, c Cmd) (Process, error)
	// Files gives access to the sandbox's files.
	Files() Files
	// Forward serves h on a loopback port of the sandbox and returns its URL
	// there, such as http://127.0.0.1:4000. A sandbox can have several forwards,
	// each with its own port. All end with the sandbox.
	Forward(ctx context.Context, h http.Handler) (baseURL string, err error)
	// Online connects the sandbox to the open network, or disconnects it, which
	// closes every connection. A sandbox that was made without the open network
	// returns an *UnsupportedError.
	Online(ctx context.Context, on bool) error
	// KillAll kills every process in the sandbox except its own helper and spared
	// processes. It returns when none is left.
	KillAll(ctx context.Context) error
	// Release ends the processes that the commands left behind and that use a file
	// of one of the folders, and leaves the others running. Spared processes and
	// commands that still run are not concerned.
	Release(ctx context.Context, folders []string) (Released, error)
	// Spare exempts the processes that run now from KillAll. Children that they
	// start later are not exempt.
	Spare(ctx context.Context) error
	// Argv returns the command of the main container, from the Spec's Container
	// and the image. The backend does not start it.
	Argv() []string
	// Health returns the health check of the image; nil if there is none.
	Health() *schema.Probe
	// Service returns the side-car of this name, with its own processes and
	// files. The side-car ends with the sandbox; do not call its Freeze, Thaw,
	// Forward or Service.
	Service(name string) (Sandbox, error)
	// CanSnapshot returns an *UnsupportedError if the backend has no snapshots, or if
	// the sandbox has files in places that a snapshot lacks.
	CanSnapshot() error
	// Snapshot copies the sandbox's files for Spec.Snapshot. It copies neither
	// processes nor files that the backend mounts, such as /etc/hosts in a container.
	// More than maxBytes of files that differ from the image give an
	// *UnsupportedError; 0 means no bound. A copy that is complete only after the context
	// has ended is removed.
	Snapshot(ctx context.Context, maxBytes int64) (Snapshot, error)
	// Freeze suspends every process; Thaw resumes them. Frozen time does not
	// count towards any limit.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
	// Workdir returns the working directory of commands without a Dir.
	Workdir() string
	// Close kills every process and removes the sandbox, frozen or not. It is
	// idempotent.
	Close(ctx context.Context) error
}

// Paid is a sandbox that exists, and costs, before Create returns.
type Paid interface {
	// Made returns the time from which it exists.
	Made() time.Time
}

// Snapshot is a copy of the files of a sandbox. It ends with the process that made
// it: the backend's next Sweep for the same owner removes it.
type Snapshot interface {
	// Remove removes the copy. The sandboxes that began with it must be closed. It is
	// idempotent.
	Remove(ctx context.Context) error
}

// Released names processes by the start of their commands, without repeats and only
// the first few.
type Released struct {
	Left  []string `json:"left,omitempty"`
	Ended []string `json:"ended,omitempty"`
}

// ErrNoSnapshot means that the Snapshot of a Spec is gone.
var ErrNoSnapshot = errors.New("the snapshot is gone")

// Process is one started command.
type Process interface {
	// Wait returns the exit of the command after all its output was written to
	// the Cmd's writers. The error reports a failure of the sandbox, such as
	// ErrLost; a failure of the command is in the Exit.
	Wait() (schema.Exit, error)
	// Signal sends a signal to the command's process group. SIGKILL kills the
	// whole tree that the command started. On a frozen sandbox Signal may block
	// until the context ends.
	Signal(ctx context.Context, s os.Signal) error
}

// Files reads and writes files of the sandbox with the rights of the sandbox's
// root user. Paths are absolute. A missing file gives fs.ErrNotExist.
type Files interface {
	// Read writes the content of a regular file to w. A file of more than limit bytes
	// gives a *TooLargeError. After an error w may have a part of the content.
	Read(ctx context.Context, path string, w io.Writer, limit int64) error
	// Write creates or replaces a file and creates its missing parents. owner is
	// a user of the sandbox; empty means the Spec's User. An error of r gives a
	// *SourceError, and the file stays as it was.
	Write(ctx context.Context, path string, r io.Reader, mode fs.FileMode, owner string) error
	Stat(ctx context.Context, path string) (FileInfo, error)
	// List lists a folder. More than MaxList files give a *TooLargeError.
	List(ctx context.Context, dir string) ([]FileInfo, error)
	// Mkdir makes a folder and its missing parents. A folder that exists stays as it
	// is. An owner that the sandbox lacks gives a *NoUserError, as in each operation
	// with an owner.
	Mkdir(ctx context.Context, dir string, mode fs.FileMode, owner string) error
	// Empty makes dir an empty folder and makes its missing parents. If dir or a
	// parent is a file or a link, a folder replaces it. Empty follows no link. With a
	// mode that lets only the owner write, no other user of the sandbox can replace dir
	// later; the parents change for that.
	Empty(ctx context.Context, dir string, mode fs.FileMode, owner string) error
	// Remove removes a file or a tree. A missing path is no error.
	Remove(ctx context.Context, path string) error
	// TarIn unpacks a tar stream below dir and creates dir if it is missing. It
	// writes nothing outside dir, even if names in the archive or links in dir
	// point elsewhere. An error of r gives a *SourceError.
	TarIn(ctx context.Context, dir string, r io.Reader, owner string) error
	// TarOut writes the regular files and directories below path as a tar stream.
	// A stream above the limit gives a *TooLargeError.
	TarOut(ctx context.Context, path string, w io.Writer, o TarOptions) error
}

// ReadFile returns the content of a regular file, as Files.Read does.
func ReadFile(ctx context.Context, f Files, path string, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if err := f.Read(ctx, path, &b, limit); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// MaxList is the most files that a list of a folder has.
const MaxList = 100_000

// FileInfo describes one file.
type FileInfo struct {
	Name string      `json:"name"`
	Size int64       `json:"size"`
	Mode fs.FileMode `json:"mode"`
}

// Spec describes a sandbox to make. CPUs or MemoryBytes of 0 means no limit. With
// Pids or DiskBytes of 0 the backend applies its own default, see DefaultPids and
// DefaultDiskBytes.
type Spec struct {
	Owner   string // marks the worker's sandboxes on its host; Sweep selects by it
	Rollout schema.ID
	Attempt int
	Part    string // distinguishes several sandboxes of one attempt; letters only

	// Snapshot has the files with which the sandbox begins, in place of the image's
	// files and of Files. It comes from a sandbox of the same backend that had the
	// same Image or Build, Container and Files. Create returns ErrNoSnapshot if it is
	// gone. Nil: none.
	Snapshot Snapshot

	Image   string // docker: an image reference
	Build   *Build // docker: a build of the image, in place of Image
	Network string // see schema.NetworkNone

	CPUs        float64
	MemoryBytes int64
	DiskBytes   int64
	Pids        int64
	GPUs        int
	// Strict names the limits that must be enforced, in the form of
	// schema.SandboxChoice.
	Strict []string
	// Note receives, during Create, each limit that is not enforced, with the
	// reason as a sentence. Nil drops them.
	Note func(limit, text string)

	User    string            // user of commands without one; default: the image's, or root
	Workdir string            // default: the image's, or /workspace
	Env     map[string]string // variables of every command
	Mounts  []Mount

	// Container has further settings. The backend ignores its Files, Health and
	// After; Files below has the files to put in.
	Container schema.Container
	Files     []File
	Folders   []Folder  // folders that Container.Mounts refers to
	Services  []Service // side-cars; they share the limits above

	Ready time.Duration // maximum time to start
	Life  time.Duration // the sandbox ends by itself after this time
	Lost  time.Duration // the sandbox ends by itself this long after the last contact with its worker

	// Log receives each line of output of a build or a pull of the image as it
	// arrives, without its line end. Calls do not overlap and end before Create
	// returns. Nil drops the lines.
	Log func(line string)
}

// File is a file to put into the container before it starts.
type File struct {
	Path string
	Mode fs.FileMode
	Data Content
}

// Folder is a writable folder that containers of one sandbox share.
type Folder struct {
	Name string
	Tar  Content // initial content; nil: none
	Seed bool    // if Tar is nil, copy the content of the image at the mount path
}

// Service is a side-car. Its owner, rollout and times come from the Spec that
// contains it.
type Service struct {
	Name    string
	Aliases []string
	Spec    Spec
}

// RunID returns the attempt and the part: together they identify the sandbox
// within its rollout.
func (s Spec) RunID() string {
	if s.Part == "" {
		return strconv.Itoa(s.Attempt)
	}
	return strconv.Itoa(s.Attempt) + "-" + s.Part
}

// Mount shows a file or folder of the host in the sandbox, read-only.
type Mount struct{ Host, Guest string }

// Cmd is one command.
type Cmd struct {
	Args    []string          // argv; Args[0] is looked up in the command's PATH
	Env     map[string]string // added to the Spec's, and overrides them
	Dir     string            // default: the sandbox's Workdir; created if missing
	User    string            // default: the Spec's User
	Stdin   io.Reader         // nil: empty
	Stdout  io.Writer         // nil: discarded
	Stderr  io.Writer
	Timeout time.Duration // 0: none; after it the whole tree is killed
	// OutputLimit bounds each of Stdout and Stderr in bytes. The sandbox counts
	// and drops further output. 0 means 64 MiB.
	OutputLimit int64
	// Terminal gives the command a terminal in place of pipes. Its output then goes to
	// Stdout alone, and the end of Stdin is the key Ctrl-D. Nil: pipes.
	Terminal *Terminal
	// Untrusted is true for the agent's command. Some backends start it in its own
	// PID namespace.
	Untrusted bool
}

// Terminal is the terminal of a command.
type Terminal struct {
	Size    TerminalSize
	Resized <-chan TerminalSize // later sizes, until the command has ended; nil: none
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// HelperPath is the path of the turngate binary in every sandbox.
const HelperPath = "/.turngate/turngate"

// AgentPath is the path of an agent's packages in every sandbox that mounts some.
const AgentPath = "/.turngate/agent"

// DefaultWorkdir is the working directory if neither the request nor the image
// names one.
const DefaultWorkdir = "/workspace"

// ErrLost means that the sandbox is gone because its helper ended or was
// killed.
var ErrLost = errors.New("the sandbox is gone")

// ErrMemory is an ErrLost: the commands used up the sandbox's memory, and the
// kernel killed the helper.
var ErrMemory = fmt.Errorf("%w: its memory was used up and the kernel killed its helper", ErrLost)

// ErrKilled is an ErrLost: processes of the sandbox ended its helper.
var ErrKilled = fmt.Errorf("%w: its processes ended its helper", ErrLost)

// ServiceError means that the service with the sandboxes of a backend has made none, so that a
// request for another sandbox would probably fail, too.
type ServiceError struct {
	Backend string
	Refused bool // it refuses the account, or more requests; otherwise it may have failed for this request alone
	Err     error
}

func (e *ServiceError) Error() string { return e.Err.Error() }
func (e *ServiceError) Unwrap() error { return e.Err }

// RefusedError means that the sandbox refuses an operation on its files, such as
// one on a path that leads through a file.
type RefusedError struct{ Operation, Reason string }

func (e *RefusedError) Error() string { return e.Operation + ": " + e.Reason }

// UnsupportedError reports a field of the request that the backend cannot
// fulfil.
type UnsupportedError struct {
	Field  string // field of the request, such as "sandbox.disk_bytes"
	Value  string
	Reason string // the reason and a remedy
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: %s is not possible here: %s", e.Field, e.Value, e.Reason)
}

// NoCommandError means that a command could not be started.
type NoCommandError struct {
	Arg    string
	Reason string
}

func (e *NoCommandError) Error() string { return fmt.Sprintf("start %q: %s", e.Arg, e.Reason) }

// NoUserError means that the sandbox lacks a user, or that no command can run as
// this user there.
type NoUserError struct {
	User   string
	Reason string
}

func (e *NoUserError) Error() string { return fmt.Sprintf("user %q: %s", e.User, e.Reason) }

// ImageError means that the image does not exist or cannot be built.
type ImageError struct {
	Image  string
	Code   string // code of the fault, such as schema.CodeNoImage; empty: schema.CodeImage
	Reason string // the reason and a remedy
}

func (e *ImageError) Error() string { return fmt.Sprintf("image %s: %s", e.Image, e.Reason) }

// TooLargeError means that a file or an archive exceeds the limit of the read.
type TooLargeError struct {
	Path  string
	Limit int64 // in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s is larger than %d bytes", e.Path, e.Limit)
}

// SourceError means that the data for a sandbox could not be read, which is no fault of
// the sandbox.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// Source returns a reader that reads from r. Its errors are of type *SourceError, except
// io.EOF.
func Source(r io.Reader) io.Reader { return source{r} }

type source struct{ r io.Reader }

func (s source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // callers of a Reader compare so
		err = &SourceError{err}
	}
	return n, err
}

// GPUsUnsupported returns the error of backends without GPUs.
func GPUsUnsupported(n int) error {
	return &UnsupportedError{Field: "sandbox.gpus", Value: fmt.Sprint(n), Reason: "this backend offers no GPU"}
}

// Delivery tells a handler whether its response reached the client of a
// forwarded connection. Forward puts a Delivery into each request's context.
type Delivery interface {
	// OnSettled calls f once after the response is complete. delivered reports
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
