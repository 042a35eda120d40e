package far

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Command is the sub-command of turngate that runs Serve.
const Command = "far-serve"

// AttachFlag makes Serve a connection to an earlier one: its arguments are the flag, the folder
// and the name of the line.
const AttachFlag = "--attach"

// server takes the orders of one line. It acts for the worker on this host.
type server struct {
	in     *bufio.Reader
	out    io.Writer
	folder string // for trees and records
	local  *local.Backend
	bare   bool       // commands run in the workspace of local without a sandbox
	lasts  *outliving // nil: the line ends with its connection
}

// Serve takes orders from standard input, answers them on standard output, and
// makes at most one sandbox, which ends with standard input. It keeps its files in
// the folder that is its first argument. A second argument is the workspace of the
// sandbox, see local.Backend; a third one, Unconfined, says that commands run there without
// a sandbox. It returns the process's exit code.
func Serve(args []string) int {
	if len(args) == 3 && args[0] == AttachFlag {
		return attach(args[1], args[2])
	}
	if len(args) < 1 || len(args) > 3 || len(args) == 3 && args[2] != Unconfined {
		fmt.Fprintln(os.Stderr, "want the folder for files; workers start this command")
		return 2
	}
	unix.Umask(0o022) // a login shell may have another one; the files of a sandbox are for its users
	// Without a handler a write to a closed output ends this process.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	defer stop()
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "find this program:", err)
		return 1
	}
	dir := args[0]
	s := &server{in: bufio.NewReader(os.Stdin), out: os.Stdout, folder: dir, local: &local.Backend{Helper: exe, StateDir: filepath.Join(dir, "state"), Workspace: strings.Join(args[1:min(len(args), 2)], "")}, bare: len(args) == 3}
	fmt.Fprintln(s.out, Mark+Ready)
	code := s.serve(ctx)
	if s.lasts != nil {
		s.lasts.finish(code)
	}
	return code
}

// serve carries out orders until the worker is gone, or its sandbox.
func (s *server) serve(ctx context.Context) (code int) {
	for {
		o, err := s.next()
		if errors.Is(err, io.EOF) {
			return 0
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "read an order:", err)
			return 1
		}
		if o.Last != nil {
			if err := s.last(ctx, o.Last); err != nil {
				fmt.Fprintln(os.Stderr, "keep the line:", err)
				return 1
			}
			continue
		}
		if o.Create != nil {
			return s.create(ctx, o.Create)
		}
		if o.Beside != nil {
			return s.beside(ctx, o.Beside)
		}
		a, err := s.do(ctx, &o)
		if err != nil {
			a = failed(err)
		}
		if s.answer(a) != nil {
			return 0
		}
	}
}

// next reads an order. io.EOF means that the worker is gone.
func (s *server) next() (o order, err error) {
	var text []byte
	for {
		part, err := s.in.ReadSlice('\n')
		if text = append(text, part...); len(text) > maxOrder {
			return o, fmt.Errorf("it has more than %d bytes", maxOrder)
		}
		if err == nil {
			return o, rawjson.Plain(json.Unmarshal(text, &o))
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return o, err
		}
	}
}

func (s *server) answer(a answer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s%s\n", Mark, data)
	return err
}

func failed(err error) answer {
	var no *sandboxes.UnsupportedError
	if errors.As(err, &no) {
		return answer{Unsupported: no}
	}
	return answer{Error: err.Error()}
}

// do carries out an order that makes no sandbox.
func (s *server) do(ctx context.Context, o *order) (a answer, err error) {
	switch {
	case o.Have != "":
		dir, err := s.tree(o.Have)
		if err != nil {
			return a, err
		}
		_, err = os.Stat(dir)
		return answer{Has: err == nil}, nil
	case o.Put != nil:
		return a, s.put(o.Put)
	case o.Sweep != "":
		if err := checkName("owner", o.Sweep); err != nil {
			return a, err
		}
		s.removeHalves(time.Now())
		s.removeLines(time.Now())
		a.Swept, err = s.local.Sweep(ctx, o.Sweep, func(id schema.ID) bool {
			if s.answer(answer{Rollout: id}) != nil {
				return true
			}
			reply, err := s.next()
			return err != nil || reply.Keep
		})
		return a, err
	}
	return a, errors.New("the order is not known")
}

// halfTime is the age after which a copy that has not got its name is of no use.
const halfTime = 24 * time.Hour

// removeHalves removes copies that did not end.
func (s *server) removeHalves(now time.Time) {
	for _, pattern := range []string{"new.*", "trees/new-*"} {
		found, _ := filepath.Glob(filepath.Join(s.folder, pattern))
		for _, path := range found {
			if info, err := os.Lstat(path); err == nil && now.Sub(info.ModTime()) > halfTime {
				_ = os.RemoveAll(path)
			}
		}
	}
}

// tree returns the folder of the tree with this digest.
func (s *server) tree(digest string) (string, error) {
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(digest) {
		return "", fmt.Errorf("%q is no digest", digest)
	}
	return filepath.Join(s.folder, treePath(digest)), nil
}

// put stores a tree. Only a whole one gets its name. On an error it reads the rest
// too, so that the worker can read the answer.
func (s *server) put(p *put) error {
	in := io.LimitReader(s.in, p.Bytes)
	defer func() { _, _ = io.Copy(io.Discard, in) }()
	dir, err := s.tree(p.Digest)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("store a folder: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return fmt.Errorf("store a folder: %w", err)
	}
	defer os.RemoveAll(temp)
	err = os.Chmod(temp, 0o755)
	if err == nil {
		err = unpack(temp, p.Digest, in)
	}
	if err == nil {
		err = syncFiles(temp)
	}
	if err == nil {
		err = os.Rename(temp, dir)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) { // another line brought it
		err = nil
	}
	if err != nil {
		return fmt.Errorf("store a folder: %w", err)
	}
	return nil
}

// syncFiles writes the file system of a folder to its disk, so that a crash of the
// host leaves no named tree without its content.
func syncFiles(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return kernel.SyncDisk(f)
}

// create makes the sandbox, carries the bytes of its box until the box or the worker
// is gone, and removes it.
func (s *server) create(ctx context.Context, c *create) int {
	if err := c.check(); err != nil {
		_ = s.answer(failed(err))
		return 0
	}
	var notes []note
	spec := sandboxes.Spec{
		Owner: c.Owner, Rollout: c.Rollout, Attempt: c.Attempt, Part: c.Part,
		CPUs: c.CPUs, MemoryBytes: c.Memory, DiskBytes: c.Disk, Pids: c.Pids, GPUs: c.GPUs, Strict: c.Strict,
		Note: func(limit, text string) { notes = append(notes, note{limit, text}) },
		User: c.User, Workdir: c.Workdir, Env: c.Env, Ready: c.Ready, Life: c.Life, Lost: c.Lost,
	}
	for _, m := range c.Mounts {
		dir, err := s.tree(m.Digest)
		if err != nil {
			_ = s.answer(failed(err))
			return 0
		}
		spec.Mounts = append(spec.Mounts, sandboxes.Mount{Host: dir, Guest: m.Guest})
	}
	l, a, err := s.open(ctx, spec)
	if err != nil {
		_ = s.answer(failed(err))
		return 0
	}
	defer func() { _ = l.Close(context.WithoutCancel(ctx)) }()
	a.Notes = notes
	if s.answer(a) != nil {
		return 0
	}
	if s.carry(ctx, l) {
		return 0
	}
	if ctx.Err() != nil {
		return exitLost
	}
	switch err := l.Lost(); {
	case errors.Is(err, sandboxes.ErrMemory):
		return exitMemory
	case errors.Is(err, sandboxes.ErrKilled):
		return exitKilled
	}
	return exitLost
}

// toBox is the byte stream to a box.
type toBox interface {
	io.ReadWriter
	Lost() error // the reason for the end of the box
	Close(ctx context.Context) error
}

// open starts the box, in a sandbox or without one, and returns the answer for its worker.
func (s *server) open(ctx context.Context, spec sandboxes.Spec) (toBox, answer, error) {
	if s.bare {
		b, err := openBare(s.local.Workspace, spec)
		if err != nil {
			return nil, answer{}, err
		}
		return b, answer{Secret: b.secret, Workdir: sandboxes.DefaultWorkdir}, nil
	}
	l, err := s.local.Open(ctx, spec)
	if err != nil {
		return nil, answer{}, err
	}
	return l, answer{Secret: l.Secret, Workdir: l.Workdir}, nil
}

// carry carries the bytes of a box until the box or the worker is gone, or the context
// ends. It reports whether the worker is gone.
func (s *server) carry(ctx context.Context, with io.ReadWriter) bool {
	worker, box := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = io.Copy(with, s.in)
		_, _ = io.Copy(io.Discard, s.in) // the box may have ended, but the worker stays until the input ends
		close(worker)
	}()
	go func() {
		_, _ = io.Copy(s.out, with)
		close(box)
	}()
	select {
	case <-worker:
		return true
	case <-ctx.Done():
	case <-box:
	}
	return false
}
