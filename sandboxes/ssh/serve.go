package ssh

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

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/schema"
)

// Command is the sub-command of turngate that runs Serve.
const Command = "ssh-serve"

// server takes the orders of one line. It is the worker's hand on this host.
type server struct {
	in     *bufio.Reader
	out    io.Writer
	folder string // of this program: the cache folder
	local  *local.Backend
}

// Serve takes orders from standard input, answers them on standard output, and
// makes at most one sandbox, which ends with standard input. It returns the
// process's exit code.
func Serve() int {
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
	dir := filepath.Dir(exe)
	s := &server{in: bufio.NewReader(os.Stdin), out: os.Stdout, folder: dir, local: &local.Backend{Helper: exe, StateDir: filepath.Join(dir, "state")}}
	fmt.Fprintln(s.out, mark+saidReady)
	for {
		o, err := s.next()
		if err != nil {
			return 0
		}
		if o.Create != nil {
			return s.create(ctx, o.Create)
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

// next reads an order. The error means that the worker is gone.
func (s *server) next() (o order, err error) {
	text, err := s.in.ReadBytes('\n')
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(text, &o)
}

func (s *server) answer(a answer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s%s\n", mark, data)
	return err
}

func failed(err error) answer {
	var no *sandboxes.UnsupportedError
	if errors.As(err, &no) {
		if no.Field == "sandbox.backend" {
			no.Value = Kind().Name
		}
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

// tree returns the folder of the tree with this digest.
func (s *server) tree(digest string) (string, error) {
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(digest) {
		return "", fmt.Errorf("%q is no digest", digest)
	}
	return filepath.Join(s.folder, "trees", digest), nil
}

// put stores a tree. Only a whole one gets its name.
func (s *server) put(p *put) error {
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
		err = unpack(temp, tree{p.Digest, p.Bytes}, s.in)
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

// create makes the sandbox, carries the bytes of its box until the box or the worker
// is gone, and removes it.
func (s *server) create(ctx context.Context, c *create) int {
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
	l, err := s.local.Open(ctx, spec)
	if err != nil {
		_ = s.answer(failed(err))
		return 0
	}
	defer func() { _ = l.Close(context.WithoutCancel(ctx)) }()
	if s.answer(answer{Secret: l.Secret, Workdir: l.Workdir, Notes: notes}) != nil {
		return 0
	}
	worker, box := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = io.Copy(l, s.in)
		close(worker)
	}()
	go func() {
		_, _ = io.Copy(s.out, l)
		close(box)
	}()
	select {
	case <-worker:
		return 0
	case <-ctx.Done():
		return exitLost
	case <-box:
	}
	switch err := l.Lost(); {
	case errors.Is(err, sandboxes.ErrMemory):
		return exitMemory
	case errors.Is(err, sandboxes.ErrKilled):
		return exitKilled
	}
	return exitLost
}
