package local

import (
	"bufio"
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

	"github.com/turngate/turngate/internal/backends/layout"
	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// remedy is the advice if a sandbox cannot be made.
const remedy = "allow user namespaces as the line above says, or use --sandbox docker"

// Create implements sandboxes.Backend.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := b.make(ctx, s, (*sandbox).greet)
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// Open makes a sandbox as Create does. It returns when the box waits for its
// worker.
func (b *Backend) Open(ctx context.Context, s sandboxes.Spec) (*Line, error) {
	l := &Line{}
	_, err := b.make(ctx, s, func(sb *sandbox, ctx context.Context, cfg *boxConfig) error {
		in := bufio.NewReader(sb.conn)
		l.Reader, l.Writer, l.Secret, l.Workdir, l.lost, l.close = in, sb.conn, cfg.Secret, cfg.Workdir, sb.whyLost, sb.Close
		defer context.AfterFunc(ctx, func() { _ = sb.conn.SetReadDeadline(time.Now()) })()
		_, err := in.Peek(1) // the box speaks first, once its root is made
		return err
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// make makes a sandbox. meet waits for its box.
func (b *Backend) make(ctx context.Context, s sandboxes.Spec, meet func(*sandbox, context.Context, *boxConfig) error) (_ *sandbox, err error) {
	alone := s
	alone.Image, alone.Build = "", nil
	if err := Refuse(alone, b.Name()); err != nil {
		return nil, err
	}
	if b.Workspace != "" && (s.Workdir != "" || len(s.Mounts) > 0) { // a link in one could lead the other out of the sandbox
		return nil, &sandboxes.UnsupportedError{Field: "sandbox.workdir", Value: s.Workdir, Reason: "a sandbox in a workspace has no other folders"}
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
	if sb.image, err = b.open(ctx, &s); err != nil {
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
	user, workdir := s.User, s.Workdir
	if sb.image != nil {
		user, workdir = cmp.Or(user, sb.image.Config.User), cmp.Or(workdir, sb.image.Config.WorkingDir)
	}
	workdir = cmp.Or(workdir, sandboxes.DefaultWorkdir)
	cfg := boxConfig{
		Config: box.Config{
			Secret: make([]byte, 32), LifeMS: cmp.Or(s.Life, 24*time.Hour).Milliseconds(), LostMS: cmp.Or(s.Lost, 5*time.Minute).Milliseconds(),
			User: user, Workdir: workdir, Nest: true, LoopbackUp: true, Rlimits: rlimits,
		},
		Root: &rootPlan{DiskBytes: s.DiskBytes, Workdir: workdir},
	}
	_, _ = rand.Read(cfg.Secret) // never fails
	if sb.image != nil {
		cfg.Env = append(cfg.Env, sb.image.Config.Env...)
		cfg.Root.Image = b.planImage(&s, sb.image)
	} else {
		cfg.Root.Binds, cfg.Root.Links = hostBinds()
	}
	for k, v := range s.Env {
		cfg.Env = append(cfg.Env, k+"="+v)
	}
	cfg.Root.Binds = append(cfg.Root.Binds, devices()...)
	for _, m := range append([]sandboxes.Mount{{Host: b.Helper, Guest: sandboxes.HelperPath}}, s.Mounts...) {
		cfg.Root.Binds = append(cfg.Root.Binds, bind{Host: m.Host, Guest: m.Guest})
	}
	if b.Workspace != "" {
		if sb.owner, err = ownerOf(b.Workspace); err != nil {
			return nil, err
		}
		cfg.Root.Binds = append(cfg.Root.Binds, bind{Host: b.Workspace, Guest: workdir, Writable: true})
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
	image  *image   // nil: the sandbox has the host's programs
	ooms   int64    // kills for lack of memory in the cgroup before the box ran
	uids   *os.File // lock file that reserves the host uids of this sandbox
	owner  *owner   // of the workspace; nil: there is none
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
		if sb.owner != nil {
			mapUsers(cmd, sb.owner.uid, sb.owner.gid, 1)
		} else if err := sb.mapUnusedUsers(cmd); err != nil {
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
	if i := cfg.Root.Image; i != nil && i.Root == "" {
		if err := sb.send(sb.image.root.Path); err != nil {
			return err
		}
	}
	return sb.cgroup.add(cmd.Process.Pid)
}

// Health implements sandboxes.Sandbox.
func (sb *sandbox) Health() *schema.Probe {
	if sb.image == nil {
		return nil
	}
	return layout.Probe(&sb.image.Config)
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
	ours, theirs, err := kernel.Pair()
	if err != nil {
		return nil, nil, fmt.Errorf("open a line to the box: %w", err)
	}
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("open a line to the box: %w", err)
	}
	return conn, theirs, nil
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
		sb.image.release()
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
	if b.Local.Images == "" {
		return n, nil
	}
	return n, b.roots().Prune()
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
		mapUsers(cmd, firstUID+i*uidRange, firstUID+i*uidRange, uidRange)
		return nil
	}
	return errors.New("reserve host uids: every range is in use")
}

// mapUsers gives a command of the host's root a namespace with n users and n groups, root
// first. They map to the host's from uid and gid on.
func mapUsers(cmd *exec.Cmd, uid, gid, n int) {
	a := cmd.SysProcAttr
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: n}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: n}}
	a.GidMappingsEnableSetgroups = true
	a.Credential = &syscall.Credential{Uid: 0, Gid: 0}
}
