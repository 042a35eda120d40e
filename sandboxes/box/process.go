package box

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turngate/turngate/schema"
)

// processes starts, reaps and kills. As the sandbox's first process the box
// inherits every orphan, so it waits for all children in one place.
type processes struct {
	mu       sync.Mutex // held over fork and registration, so that no exit is missed
	waiting  map[int]chan<- syscall.WaitStatus
	active   map[uint64]*job
	nextJob  uint64
	asRoot   *launcher
	asOther  *launcher
	noGroups bool
	oom      *oomCounter
}

func newProcesses(oom *oomCounter) (*processes, error) {
	asRoot, err := newLauncher(defaultCaps())
	if err != nil {
		return nil, err
	}
	asOther, err := newLauncher(nil)
	if err != nil {
		return nil, err
	}
	p := &processes{
		waiting: map[int]chan<- syscall.WaitStatus{}, active: map[uint64]*job{}, asRoot: asRoot, asOther: asOther,
		noGroups: setgroupsDenied(), oom: oom,
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go p.reap(children)
	return p, nil
}

func (p *processes) reap(children <-chan os.Signal) {
	for range children {
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			p.mu.Lock()
			ch := p.waiting[pid]
			delete(p.waiting, pid)
			p.mu.Unlock()
			if ch != nil {
				ch <- status
			}
		}
	}
}

// command is what a job runs, resolved in the sandbox.
type command struct {
	path string
	argv []string
	env  []string
	dir  string
	acct account
}

func (h *header) command(c *Config) (command, error) {
	if len(h.Args) == 0 || h.Args[0] == "" {
		return command{}, &startError{"", "no command"}
	}
	acct, err := lookupAccount(cmp.Or(h.User, c.User))
	if err != nil {
		return command{}, &startError{h.Args[0], err.Error()}
	}
	env := merge([]string{"PATH=" + defaultPath, "HOME=" + acct.home, "USER=" + acct.name, "LOGNAME=" + acct.name, "LANG=C.UTF-8"}, c.Env, h.Env)
	dir := h.Path
	if dir == "" {
		dir = c.Workdir
	}
	if err := makeDir(dir, 0o755, &acct); err != nil {
		return command{}, &startError{h.Args[0], err.Error()}
	}
	path, err := lookPath(h.Args[0], lookupEnv(env, "PATH"), dir)
	if err != nil {
		return command{}, &startError{h.Args[0], err.Error()}
	}
	return command{path: path, argv: h.Args, env: env, dir: dir, acct: acct}, nil
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// startError says that a command could not be started; it is the task's
// doing, not ours.
type startError struct{ arg, reason string }

func (e *startError) Error() string { return fmt.Sprintf("start %q: %s", e.arg, e.reason) }

// job is one running command and the tree below it.
type job struct {
	p       *processes
	id      uint64
	pid     int
	exited  <-chan syscall.WaitStatus
	started time.Time
	nested  bool
	ooms    int64

	killing sync.Mutex // held while the tree is killed: until then the job is not over

	mu       sync.Mutex
	timedOut bool
}

func (p *processes) start(c command, files []uintptr, sys *syscall.SysProcAttr) (*job, error) {
	l := p.asOther
	if c.acct.uid == 0 {
		l = p.asRoot
	}
	if sys == nil {
		sys = &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: c.acct.uid, Gid: c.acct.gid, Groups: c.acct.groups, NoSetGroups: p.noGroups},
		}
	}
	return p.launch(l, c, files, sys)
}

func (p *processes) launch(l *launcher, c command, files []uintptr, sys *syscall.SysProcAttr) (*job, error) {
	exited := make(chan syscall.WaitStatus, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	ooms := p.oom.count()
	pid, err := l.start(c.path, c.argv, &syscall.ProcAttr{Dir: c.dir, Env: c.env, Files: files, Sys: sys})
	if err != nil {
		return nil, &startError{c.argv[0], err.Error()}
	}
	// When memory runs out the kernel takes what the box started, not the box.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("500"), 0)
	p.nextJob++
	j := &job{p: p, id: p.nextJob, pid: pid, exited: exited, started: time.Now(), ooms: ooms}
	p.waiting[pid] = exited
	p.active[j.id] = j
	return j, nil
}

// wait returns how the command ended; it is called once.
func (j *job) wait() schema.Exit {
	status := <-j.exited
	j.killing.Lock()
	j.p.mu.Lock()
	delete(j.p.active, j.id)
	j.p.mu.Unlock()
	j.killing.Unlock()
	e := exitOf(status)
	e.MS = time.Since(j.started).Milliseconds()
	j.mu.Lock()
	e.TimedOut = j.timedOut
	j.mu.Unlock()
	e.OOM = !e.TimedOut && e.Code != 0 && j.p.oom.count() > j.ooms
	return e
}

func exitOf(s syscall.WaitStatus) schema.Exit {
	if s.Signaled() {
		return schema.Exit{Code: 128 + int(s.Signal()), Signal: s.Signal().String()}
	}
	return schema.Exit{Code: s.ExitStatus()}
}

func (j *job) timeout() {
	j.mu.Lock()
	j.timedOut = true
	j.mu.Unlock()
	j.kill()
}

// signal reaches the command's process group; SIGKILL its whole tree.
func (j *job) signal(s syscall.Signal) {
	if s == syscall.SIGKILL {
		j.kill()
		return
	}
	if j.nested { // the namespace's own first process passes it on
		_ = syscall.Kill(j.pid, s)
		return
	}
	_ = syscall.Kill(-j.pid, s)
}

// kill ends the command and all that it started, also what left its process
// group or its parent.
func (j *job) kill() {
	if j.nested { // the kernel ends the whole namespace
		_ = syscall.Kill(j.pid, syscall.SIGKILL)
		return
	}
	j.killing.Lock()
	defer j.killing.Unlock()
	j.p.mu.Lock()
	active := j.p.active[j.id] == j
	j.p.mu.Unlock()
	if !active {
		return
	}
	_ = syscall.Kill(-j.pid, syscall.SIGKILL)
	for range 200 {
		tree := j.tree()
		if len(tree) == 0 {
			return
		}
		for _, pid := range tree {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond) // let the kernel do it, then look again
	}
}

// tree lists the living processes of this job. An orphan belongs to it if no
// other job is active.
func (j *job) tree() []int {
	j.p.mu.Lock()
	alone := len(j.p.active) <= 1
	j.p.mu.Unlock()
	all := listProcesses()
	mine := map[int]bool{}
	for grew := true; grew; {
		grew = false
		for _, pr := range all {
			if mine[pr.pid] || pr.pid == os.Getpid() {
				continue
			}
			if pr.pid == j.pid || pr.session == j.pid || mine[pr.parent] || alone {
				mine[pr.pid], grew = true, true
			}
		}
	}
	out := make([]int, 0, len(mine))
	for _, pr := range all {
		if mine[pr.pid] && !pr.dead {
			out = append(out, pr.pid)
		}
	}
	return out
}

// killAll ends everything but the box itself. It is only right for the first
// process of a namespace.
func (p *processes) killAll() error {
	if os.Getpid() != 1 {
		return errors.New("the box is not the sandbox's first process")
	}
	for range 1000 {
		_ = syscall.Kill(-1, syscall.SIGKILL)
		alive := 0
		for _, pr := range listProcesses() {
			if pr.pid != 1 && !pr.dead {
				alive++
			}
		}
		if alive == 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond) // let the kernel do it, then look again
	}
	return errors.New("processes are left that do not die")
}

func (p *processes) signalAll(s syscall.Signal) error {
	if os.Getpid() != 1 {
		return errors.New("the box is not the sandbox's first process")
	}
	if err := syscall.Kill(-1, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal everything: %w", err)
	}
	return nil
}

type procInfo struct {
	pid, parent, session int
	dead                 bool
}

func listProcesses() []procInfo {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []procInfo
	for _, e := range entries {
		var pr procInfo
		if _, err := fmt.Sscanf(e.Name(), "%d", &pr.pid); err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything: what counts follows it.
		_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
		var state string
		var group int
		if _, err := fmt.Sscanf(rest, "%s %d %d %d", &state, &pr.parent, &group, &pr.session); !ok || err != nil {
			continue
		}
		pr.dead = state == "Z" || state == "X"
		out = append(out, pr)
	}
	return out
}

// pump copies output until its end. What exceeds limit is counted and dropped,
// so that the command never stalls on a full pipe that nobody wants.
func pump(r io.Reader, w io.Writer, limit int64) (total int64) {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if keep := min(int64(n), max(limit-total, 0)); keep > 0 {
			if _, werr := w.Write(buf[:keep]); werr != nil {
				limit = 0
			}
		}
		total += int64(n)
		if err != nil {
			return total
		}
	}
}

func merge(lists ...[]string) []string {
	at := map[string]int{}
	var out []string
	for _, list := range lists {
		for _, kv := range list {
			k, _, _ := strings.Cut(kv, "=")
			if i, ok := at[k]; ok {
				out[i] = kv
				continue
			}
			at[k] = len(out)
			out = append(out, kv)
		}
	}
	return out
}

func lookupEnv(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func lookPath(name, path, dir string) (string, error) {
	var tries []string
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		tries = []string{name}
	} else {
		for _, d := range filepath.SplitList(path) {
			if filepath.IsAbs(d) {
				tries = append(tries, filepath.Join(d, name))
			}
		}
	}
	reason := fs.ErrNotExist
	for _, t := range tries {
		info, err := os.Stat(t)
		if err != nil || info.IsDir() {
			continue
		}
		if info.Mode()&0o111 != 0 {
			return t, nil
		}
		reason = fs.ErrPermission
	}
	return "", fmt.Errorf("%w (looked in %s)", reason, strings.Join(tries, ", "))
}

// oomCounter reads how often the kernel killed for want of memory.
type oomCounter struct{ f *os.File }

func (o *oomCounter) count() int64 {
	if o == nil || o.f == nil {
		return 0
	}
	buf := make([]byte, 4096)
	n, _ := o.f.ReadAt(buf, 0)
	for line := range strings.Lines(string(buf[:n])) {
		var v int64
		if _, err := fmt.Sscanf(line, "oom_kill %d", &v); err == nil {
			return v
		}
	}
	return 0
}

// openOOMCounter finds the counter of this sandbox's memory cgroup.
func openOOMCounter(fd int) *oomCounter {
	if fd > 0 {
		return &oomCounter{os.NewFile(uintptr(fd), "oom")}
	}
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if f, err := os.Open(path); err == nil {
			return &oomCounter{f}
		}
	}
	return nil
}
