// Package dummy is a backend for tests. Its programs are Go functions and its
// files are in a temporary folder. It isolates nothing; workers offer it only
// in tests.
package dummy

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Program implements a command. It returns the exit status. The context ends
// when the command is killed.
type Program func(ctx context.Context, p *Proc) int

// Proc is the environment of a program.
type Proc struct {
	Args           []string
	Env            map[string]string
	Dir            string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Files          *os.Root // the sandbox's "/"
}

// Backend makes dummy sandboxes.
type Backend struct {
	Programs map[string]Program // by Args[0]
	Absent   []string           // users that no sandbox has; every other one exists

	mu        sync.Mutex
	open      map[*sandbox]struct{}
	snapshots []*snapshot // removed ones, too
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return "dummy" }

// Check implements sandboxes.Backend.
func (b *Backend) Check(context.Context) error { return nil }

// Open counts the sandboxes that are not closed.
func (b *Backend) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open)
}

// Create implements sandboxes.Backend.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	if s.GPUs > 0 {
		return nil, sandboxes.GPUsUnsupported(s.GPUs)
	}
	if err := sandboxes.RefuseContainers(s, "dummy"); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	dir, err := os.MkdirTemp("", "turngate-dummy-")
	if err != nil {
		return nil, fmt.Errorf("make a dummy sandbox: %w", err)
	}
	if from, ok := s.Snapshot.(*snapshot); ok {
		if err := from.copyTo(dir); err != nil {
			os.RemoveAll(dir)
			return nil, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("make a dummy sandbox: %w", err)
	}
	s.Workdir = cmp.Or(s.Workdir, sandboxes.DefaultWorkdir)
	life, end := context.WithCancel(context.Background())
	sb := &sandbox{b: b, spec: s, dir: dir, root: root, life: life, end: end}
	b.mu.Lock()
	if b.open == nil {
		b.open = map[*sandbox]struct{}{}
	}
	b.open[sb] = struct{}{}
	b.mu.Unlock()
	return sb, nil
}

// Sweep implements sandboxes.Backend.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	b.mu.Lock()
	all := maps.Clone(b.open)
	b.mu.Unlock()
	n := 0
	for sb := range all {
		if sb.spec.Owner == owner && !keep(sb.spec.Rollout) {
			if err := sb.Close(ctx); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

type sandbox struct {
	sandboxes.Alone
	b    *Backend
	spec sandboxes.Spec
	dir  string
	root *os.Root
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	servers []*http.Server
	procs   sync.WaitGroup
	active  map[*process]bool // true: KillAll spares the process
	closed  bool
}

func (s *sandbox) Workdir() string        { return s.spec.Workdir }
func (s *sandbox) Files() sandboxes.Files { return files{s} }

// Online implements sandboxes.Sandbox. The programs are Go functions and have
// the network of the test in any case.
func (s *sandbox) Online(context.Context, bool) error {
	if s.spec.Network == schema.NetworkOpen {
		return nil
	}
	return sandboxes.NotOnline()
}

func (s *sandbox) Freeze(context.Context) error { return nil }
func (s *sandbox) Thaw(context.Context) error   { return nil }

// lookFor is the helper's program of this name. It misses nothing.
func lookFor(_ context.Context, p *Proc) int {
	_, _ = io.WriteString(p.Stdout, "{}")
	return 0
}

func (s *sandbox) Start(_ context.Context, c sandboxes.Cmd) (sandboxes.Process, error) {
	if len(c.Args) == 0 {
		return nil, &sandboxes.NoCommandError{Reason: "no command"}
	}
	if c.Terminal != nil {
		return nil, &sandboxes.UnsupportedError{Field: "terminal", Value: "a terminal", Reason: "commands of this backend are functions"}
	}
	run := s.b.Programs[c.Args[0]]
	if len(c.Args) > 1 && c.Args[0] == sandboxes.HelperPath && c.Args[1] == "look-for" {
		run = lookFor
	}
	if run == nil {
		return nil, &sandboxes.NoCommandError{Arg: c.Args[0], Reason: "no such program"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, sandboxes.ErrLost
	}
	env := maps.Clone(s.spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, c.Env)
	ctx, cancel := context.WithCancelCause(s.life)
	p := &process{cancel: cancel, done: make(chan struct{})}
	out, errw := newCounter(c.Stdout, c.OutputLimit), newCounter(c.Stderr, c.OutputLimit)
	in := c.Stdin
	if in == nil {
		in = bytes.NewReader(nil)
	}
	if c.Dir == "" {
		c.Dir = s.spec.Workdir
	}
	if s.active == nil {
		s.active = map[*process]bool{}
	}
	s.active[p] = false
	if c.Timeout > 0 {
		p.timer = time.AfterFunc(c.Timeout, func() { cancel(errTimeout) })
	}
	start := time.Now()
	s.procs.Go(func() {
		defer close(p.done)
		code := run(ctx, &Proc{Args: c.Args, Env: env, Dir: c.Dir, Stdin: in, Stdout: out, Stderr: errw, Files: s.root})
		p.exit = schema.Exit{Code: code, MS: time.Since(start).Milliseconds(), StdoutBytes: out.total, StderrBytes: errw.total}
		if ctx.Err() != nil {
			p.exit.Code, p.exit.Signal = 137, syscall.SIGKILL.String()
			p.exit.TimedOut = errors.Is(context.Cause(ctx), errTimeout)
			if s.life.Err() != nil {
				p.err = sandboxes.ErrLost
			}
		}
		if p.timer != nil {
			p.timer.Stop()
		}
		cancel(nil)
		s.mu.Lock()
		delete(s.active, p)
		s.mu.Unlock()
	})
	return p, nil
}

var errTimeout = errors.New("timed out")

type process struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
	done   chan struct{}
	exit   schema.Exit
	err    error
}

func (p *process) Wait() (schema.Exit, error) {
	<-p.done
	return p.exit, p.err
}

func (p *process) Signal(context.Context, os.Signal) error {
	p.cancel(errors.New("signalled"))
	return nil
}

func (s *sandbox) Forward(_ context.Context, h http.Handler) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("forward: %w", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	s.servers = append(s.servers, srv)
	go srv.Serve(l) //nolint:errcheck // it ends with Close
	return "http://" + l.Addr().String(), nil
}

func (s *sandbox) KillAll(ctx context.Context) error {
	s.mu.Lock()
	var all []*process
	for p, spared := range s.active {
		if !spared {
			all = append(all, p)
		}
	}
	s.mu.Unlock()
	for _, p := range all {
		p.cancel(errors.New("killed"))
	}
	for _, p := range all {
		select {
		case <-p.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Release implements sandboxes.Sandbox. The programs are Go functions, which leave
// no process behind.
func (s *sandbox) Release(context.Context, []string) (sandboxes.Released, error) {
	return sandboxes.Released{}, nil
}

func (s *sandbox) Spare(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.active {
		s.active[p] = true
	}
	return nil
}

func (s *sandbox) Close(context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	servers := s.servers
	s.mu.Unlock()
	s.end()
	for _, srv := range servers {
		_ = srv.Close()
	}
	s.procs.Wait()
	s.root.Close()
	s.b.mu.Lock()
	delete(s.b.open, s)
	s.b.mu.Unlock()
	return os.RemoveAll(s.dir)
}

type counter struct {
	w     io.Writer
	limit int64
	total int64
}

func newCounter(w io.Writer, limit int64) *counter {
	if w == nil {
		w = io.Discard
	}
	if limit <= 0 {
		limit = 64 << 20
	}
	return &counter{w: w, limit: limit}
}

func (c *counter) Write(p []byte) (int, error) {
	if keep := min(int64(len(p)), max(c.limit-c.total, 0)); keep > 0 {
		if _, err := c.w.Write(p[:keep]); err != nil {
			return 0, err
		}
	}
	c.total += int64(len(p))
	return len(p), nil
}

// lacks returns an error if the sandbox does not have a user.
func (s *sandbox) lacks(user string) error {
	if user = cmp.Or(user, s.spec.User); slices.Contains(s.b.Absent, user) {
		return &sandboxes.NoUserError{User: user, Reason: "it is absent"}
	}
	return nil
}

type files struct{ s *sandbox }

func rel(path string) string {
	path = strings.TrimPrefix(filepath.Clean("/"+path), "/")
	if path == "" {
		return "."
	}
	return path
}

func (f files) Read(_ context.Context, path string, w io.Writer, limit int64) error {
	file, err := f.s.root.Open(rel(path))
	if err != nil {
		return err
	}
	defer file.Close()
	n, err := io.Copy(w, io.LimitReader(file, limit+1))
	if err == nil && n > limit {
		return &sandboxes.TooLargeError{Path: path, Limit: limit}
	}
	return err
}

func (f files) Write(_ context.Context, path string, r io.Reader, mode fs.FileMode, owner string) error {
	if err := f.s.lacks(owner); err != nil {
		return err
	}
	if err := f.s.root.MkdirAll(filepath.Dir(rel(path)), 0o755); err != nil {
		return err
	}
	data, err := io.ReadAll(sandboxes.Source(r))
	if err != nil {
		return err
	}
	return f.s.root.WriteFile(rel(path), data, mode)
}

func (f files) Stat(_ context.Context, path string) (sandboxes.FileInfo, error) {
	info, err := f.s.root.Stat(rel(path))
	if err != nil {
		return sandboxes.FileInfo{}, err
	}
	return sandboxes.FileInfo{Name: info.Name(), Size: info.Size(), Mode: info.Mode()}, nil
}

func (f files) List(_ context.Context, dir string) ([]sandboxes.FileInfo, error) {
	entries, err := fs.ReadDir(f.s.root.FS(), rel(dir))
	if err != nil {
		return nil, err
	}
	var out []sandboxes.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			out = append(out, sandboxes.FileInfo{Name: e.Name(), Size: info.Size(), Mode: info.Mode()})
		}
	}
	return out, nil
}

func (f files) Mkdir(_ context.Context, dir string, mode fs.FileMode, owner string) error {
	if err := f.s.lacks(owner); err != nil {
		return err
	}
	return f.s.root.MkdirAll(rel(dir), mode)
}

func (f files) Empty(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	if err := f.s.lacks(owner); err != nil {
		return err
	}
	at := ""
	for part := range strings.SplitSeq(rel(dir), "/") {
		at = filepath.Join(at, part)
		if info, err := f.s.root.Lstat(at); err == nil && !info.IsDir() {
			if err := f.s.root.Remove(at); err != nil {
				return err
			}
		}
	}
	if err := f.Remove(ctx, dir); err != nil {
		return err
	}
	return f.Mkdir(ctx, dir, mode, owner)
}

func (f files) Remove(_ context.Context, path string) error { return f.s.root.RemoveAll(rel(path)) }

func (f files) TarIn(ctx context.Context, dir string, r io.Reader, owner string) error {
	if err := f.s.lacks(owner); err != nil {
		return err
	}
	archive := tar.NewReader(sandboxes.Source(r))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if !filepath.IsLocal(filepath.Clean(h.Name)) {
			return fmt.Errorf("unpack %q: it leaves its folder", h.Name)
		}
		path := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = f.Mkdir(ctx, path, 0o755, owner)
		case tar.TypeReg:
			var data []byte
			if data, err = io.ReadAll(archive); err == nil {
				err = f.Write(ctx, path, bytes.NewReader(data), fs.FileMode(h.Mode).Perm(), owner)
			}
		case tar.TypeSymlink:
			err = f.s.root.Symlink(h.Linkname, rel(path))
		}
		if err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

func (f files) TarOut(_ context.Context, path string, w io.Writer, o sandboxes.TarOptions) error {
	excluded, err := sandboxes.NewExcluder(o.Exclude)
	if err != nil {
		return err
	}
	out, left := tar.NewWriter(w), o.Limit
	sub, err := fs.Sub(f.s.root.FS(), rel(path))
	if err != nil {
		return err
	}
	err = fs.WalkDir(sub, ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && o.Links && d.Type() == fs.ModeSymlink && !excluded.Excludes(p) {
			to, err := f.s.root.Readlink(filepath.Join(rel(path), p))
			if err != nil {
				return err
			}
			return out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: p, Linkname: to, Mode: 0o777})
		}
		if err != nil || !d.Type().IsRegular() || excluded.Excludes(p) {
			return err
		}
		data, err := fs.ReadFile(sub, p)
		if err != nil {
			return err
		}
		if left -= int64(len(data)); left < 0 {
			return &sandboxes.TooLargeError{Path: path, Limit: o.Limit}
		}
		if err := out.WriteHeader(&tar.Header{Name: p, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}
