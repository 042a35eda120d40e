// Package local runs sandboxes without Docker, as root or as an ordinary user.
// The box makes its own namespaces and a root directory in which the host's
// /usr and a few other paths are read-only; nothing else of the host is
// visible. If the kernel forbids this, Create fails: there is no mode without
// isolation.
package local

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Backend makes local sandboxes.
type Backend struct {
	// Helper is the path of a program with BoxMain as its "box" sub-command, such
	// as this binary.
	Helper string
	// StateDir keeps records of sandboxes, so that a later process can sweep
	// them.
	StateDir string
}

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "local", Works: "namespaces work", Remedy: "allow user namespaces as the line above says, or use --sandbox docker",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			return &Backend{Helper: h.Helper, StateDir: h.StateDir}, nil
		},
	}
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

// Check makes a sandbox and closes it.
func (b *Backend) Check(ctx context.Context) error {
	sb, err := b.Create(ctx, sandboxes.Spec{Owner: "check", Rollout: schema.ID("check-" + strconv.Itoa(os.Getpid())), Attempt: 1})
	if err != nil {
		return err
	}
	return sb.Close(ctx)
}

// Refuse returns an *UnsupportedError if s asks for something that a local sandbox
// lacks. backend is the name of the backend that makes it.
func Refuse(s sandboxes.Spec, backend string) error {
	if s.Network != "" && s.Network != schema.NetworkNone {
		return &sandboxes.UnsupportedError{Field: "sandbox.network", Value: s.Network, Reason: "the " + backend + " sandbox has no network; use the docker sandbox, or ask for none (--network none)"}
	}
	if s.Image != "" || s.Build != nil {
		return &sandboxes.UnsupportedError{Field: "sandbox.image", Value: cmp.Or(s.Image, "environment/Dockerfile"),
			Reason: "the " + backend + " sandbox shows the host's /usr and has no images; use the docker sandbox"}
	}
	if s.GPUs > 0 {
		return sandboxes.GPUsUnsupported(s.GPUs)
	}
	for file := range etcFiles() {
		if s.Workdir == file || strings.HasPrefix(s.Workdir, file+"/") {
			return &sandboxes.UnsupportedError{Field: "sandbox.workdir", Value: s.Workdir, Reason: file + " is a file; use a folder, such as " + sandboxes.DefaultWorkdir}
		}
	}
	return sandboxes.RefuseContainers(s, backend)
}

// Create implements sandboxes.Backend.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := b.make(ctx, s, (*sandbox).greet)
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// make makes a sandbox. meet waits for its box.
func (b *Backend) make(ctx context.Context, s sandboxes.Spec, meet func(*sandbox, context.Context, *boxConfig) error) (_ *sandbox, err error) {
	if err := Refuse(s, b.Name()); err != nil {
		return nil, err
	}
	sb := &sandbox{name: sandboxName(s)}
	defer func() {
		if err != nil {
			_ = sb.Close(context.WithoutCancel(ctx))
		}
	}()
	var rlimits []box.Rlimit
	if err := s.Raise(); err != nil {
		return nil, err
	}
	s.Pids = cmp.Or(s.Pids, sandboxes.DefaultPids) + box.Threads
	pids := false
	if sb.cgroup, pids, err = newCgroup(sb.name, s); err != nil {
		return nil, err
	}
	if !pids {
		// Without a cgroup the number of processes is limited per user. In the
		// sandbox's own user namespace that limits the sandbox.
		rlimits = append(rlimits, box.Rlimit{Resource: unix.RLIMIT_NPROC, Max: uint64(s.Pids)})
	}
	workdir := cmp.Or(s.Workdir, sandboxes.DefaultWorkdir)
	cfg := boxConfig{
		Config: box.Config{
			Secret: make([]byte, 32), LifeMS: cmp.Or(s.Life, 24*time.Hour).Milliseconds(), LostMS: cmp.Or(s.Lost, 5*time.Minute).Milliseconds(),
			User: s.User, Workdir: workdir, Nest: true, LoopbackUp: true, Rlimits: rlimits,
		},
		Root: &rootPlan{DiskBytes: s.DiskBytes, Workdir: workdir},
	}
	_, _ = rand.Read(cfg.Secret) // never fails
	for k, v := range s.Env {
		cfg.Env = append(cfg.Env, k+"="+v)
	}
	cfg.Root.Binds, cfg.Root.Links = hostBinds()
	for _, m := range append([]sandboxes.Mount{{Host: b.Helper, Guest: sandboxes.HelperPath}}, s.Mounts...) {
		cfg.Root.Binds = append(cfg.Root.Binds, bind{Host: m.Host, Guest: m.Guest})
	}
	if err := sb.start(&cfg, b.Helper); err != nil {
		return nil, err
	}
	if err := sb.remember(b.StateDir); err != nil {
		return nil, err
	}
	return sb, sb.configure(ctx, &cfg, cmp.Or(s.Ready, 15*time.Second), meet)
}

func sandboxName(s sandboxes.Spec) string {
	return fmt.Sprintf("turngate-%s.%s.%s", s.Owner, s.Rollout, s.RunID())
}

type sandbox struct {
	*box.Client
	sandboxes.Alone
	name   string
	cmd    *exec.Cmd
	conn   net.Conn
	stdin  io.WriteCloser
	says   bytes.Buffer // stderr of the box
	cgroup *cgroup
	ooms   int64    // kills for lack of memory in the cgroup before the box ran
	uids   *os.File // lock file that reserves the host uids of this sandbox
	record string
	exited chan struct{}
	close  sync.Once
}

// start creates the namespaces with the box as their first process. The box
// waits for its configuration on stdin, so that its limits are set before it
// acts.
func (sb *sandbox) start(cfg *boxConfig, helper string) error {
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	sb.conn = ours
	program, err := os.Open(helper)
	if err != nil {
		return fmt.Errorf("start the box: %w", err)
	}
	defer program.Close()
	// Use a descriptor because the box's user may lack access to the program's
	// path.
	cmd := &exec.Cmd{Path: "/proc/self/fd/4", Args: []string{"turngate", "box"}}
	cmd.Env = []string{}
	cmd.Stderr = &sb.says
	cmd.WaitDelay = time.Second
	cmd.ExtraFiles = []*os.File{theirs, program}
	cfg.FD = 3
	if sb.cgroup != nil && sb.cgroup.oomFile != "" {
		f, err := os.Open(sb.cgroup.oomFile)
		if err != nil {
			return fmt.Errorf("watch for lack of memory: %w", err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		cfg.OOMFD = 5
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if ownsAllUsers() {
		if err := sb.mapUnusedUsers(cmd); err != nil {
			return err
		}
		// The box will not be the host's root any more, so it receives the host's
		// folders as open mounts.
		for i := range cfg.Root.Binds {
			bd := &cfg.Root.Binds[i]
			fd, err := openTree(bd.Host)
			if err != nil {
				return forbidden(err)
			}
			f := os.NewFile(uintptr(fd), bd.Host)
			defer f.Close()
			bd.FD = 3 + len(cmd.ExtraFiles)
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
	} else {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if sb.stdin, err = cmd.StdinPipe(); err != nil {
		return fmt.Errorf("start the box: %w", err)
	}
	if err := startWithKeyring(cmd); err != nil {
		return forbidden(fmt.Errorf("start the box: %w", err))
	}
	sb.cmd, sb.exited, sb.ooms = cmd, make(chan struct{}), sb.cgroup.oomKills()
	go func() {
		_ = cmd.Wait()
		close(sb.exited)
	}()
	return sb.cgroup.add(cmd.Process.Pid)
}

// forbidden adds the usual remedies to an error that kernel settings may cause.
func forbidden(err error) error {
	if errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS) {
		return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: "local", Reason: fmt.Sprintf(
			"%v; allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; kernel 5.12 or later), or use the docker sandbox", err)}
	}
	return err
}

// configure sends the box its configuration and waits for it.
func (sb *sandbox) configure(ctx context.Context, cfg *boxConfig, ready time.Duration, meet func(*sandbox, context.Context, *boxConfig) error) error {
	data, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("configure the box: %w", err)
	}
	ctx, cancel := box.Within(ctx, ready, fmt.Errorf("the box did not come up within %s", ready))
	defer cancel()
	_, werr := sb.stdin.Write(data)
	if cerr := sb.stdin.Close(); werr == nil {
		werr = cerr
	}
	err = meet(sb, ctx, cfg)
	if err == nil && werr == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-sb.exited:
		return forbiddenBox(strings.TrimSpace(sb.says.String()), sb.cmd.ProcessState)
	case <-time.After(time.Second):
		return fmt.Errorf("the box did not come up: %w", errors.Join(err, werr))
	}
}

// greet connects to the box as its worker.
func (sb *sandbox) greet(ctx context.Context, cfg *boxConfig) error {
	client, err := box.NewClient(ctx, sb.conn, cfg.Secret, cfg.Workdir)
	if err != nil {
		return err
	}
	client.Explain(sb.whyLost)
	sb.Client = client
	return nil
}

func forbiddenBox(says string, state *os.ProcessState) error {
	if state.ExitCode() == box.ExitRoot {
		return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: "local", Reason: fmt.Sprintf(
			"the kernel or a security module forbids part of it (%s); allow mounts in user namespaces, or use the docker sandbox", says)}
	}
	return fmt.Errorf("the box ended with %s: %s", state, says)
}

func socketpair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a line to the box: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "box")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, fmt.Errorf("open a line to the box: %w", err)
	}
	return conn, os.NewFile(uintptr(fds[1]), "worker"), nil
}

// Close implements sandboxes.Sandbox.
func (sb *sandbox) Close(context.Context) error {
	sb.close.Do(func() {
		if sb.Client != nil {
			sb.Disconnect()
		}
		if sb.conn != nil {
			_ = sb.conn.Close()
		}
		if sb.cmd != nil {
			_ = sb.stdin.Close()
			_ = sb.cmd.Process.Kill() // the kernel then ends the namespace
			<-sb.exited
		}
		sb.cgroup.remove()
		if sb.uids != nil {
			_ = sb.uids.Close()
		}
		if sb.record != "" {
			_ = os.Remove(sb.record)
		}
	})
	return nil
}

// remember records the process of the box, so that Sweep can kill it after this
// worker died.
func (sb *sandbox) remember(stateDir string) error {
	if stateDir == "" {
		return nil
	}
	dir := filepath.Join(stateDir, "local")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("remember the sandbox: %w", err)
	}
	sb.record = filepath.Join(dir, sb.name)
	text := fmt.Sprintf("%d %s", sb.cmd.Process.Pid, startTime(sb.cmd.Process.Pid))
	if err := os.WriteFile(sb.record, []byte(text), 0o600); err != nil {
		return fmt.Errorf("remember the sandbox: %w", err)
	}
	return nil
}

// Sweep implements sandboxes.Backend. Boxes end by themselves when their worker
// dies. Sweep kills the boxes of a stuck worker and removes records and cgroups
// of all others.
func (b *Backend) Sweep(_ context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	prefix := "turngate-" + owner + "."
	kept := func(name string) bool {
		parts := strings.Split(name, ".")
		return len(parts) == 3 && keep(schema.ID(parts[1]))
	}
	records, err := filepath.Glob(filepath.Join(b.StateDir, "local", prefix+"*"))
	if err != nil {
		return 0, fmt.Errorf("list the records of sandboxes: %w", err)
	}
	n := 0
	for _, record := range records {
		if kept(filepath.Base(record)) {
			continue
		}
		killed := false
		if data, err := os.ReadFile(record); err == nil {
			var pid int
			var start string
			if _, err := fmt.Sscan(string(data), &pid, &start); err == nil && start != "" && startTime(pid) == start {
				killed = syscall.Kill(pid, syscall.SIGKILL) == nil
			}
		}
		if os.Remove(record) == nil || killed { // the process that made the sandbox may have removed the record by now
			n++
		}
	}
	sweepCgroups(prefix, kept)
	return n, nil
}

// startTime returns the start time of a process. It distinguishes two processes
// with the same pid.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// The range of host uids for sandboxes. It is above the uids that systemd gives
// to containers and below the values that signed 32-bit programs misread.
const (
	firstUID  = 0x70000000
	uidRange  = 1 << 16
	uidRanges = 4000
)

// ownsAllUsers reports whether this process is the host's root. It is false for
// the root of a user namespace with few users, as in a rootless container.
func ownsAllUsers() bool {
	if os.Geteuid() != 0 {
		return false
	}
	data, err := os.ReadFile("/proc/self/uid_map")
	var inside, outside, count int64
	if _, serr := fmt.Sscan(string(data), &inside, &outside, &count); err != nil || serr != nil {
		return false
	}
	return inside == 0 && count > firstUID+uidRanges*uidRange
}

// mapUnusedUsers reserves a range of host uids for the sandbox with a file
// lock, which ends with this process.
func (sb *sandbox) mapUnusedUsers(cmd *exec.Cmd) error {
	dir := "/run/turngate/uids"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("reserve host uids: %w", err)
	}
	for i := range uidRanges {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(i)), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("reserve host uids: %w", err)
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			f.Close()
			continue
		}
		sb.uids = f
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstUID + i*uidRange, Size: uidRange}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = ids, ids
		cmd.SysProcAttr.GidMappingsEnableSetgroups = true
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 0, Gid: 0}
		return nil
	}
	return errors.New("reserve host uids: every range is in use")
}
