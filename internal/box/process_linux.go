package box

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turngate/turngate/schema"
)

// processes starts, reaps and kills processes. The box is the sandbox's first
// process and inherits every orphan, so one goroutine waits for all children.
type processes struct {
	mu       sync.Mutex // held over fork and registration, so that reap finds the channel of every exit
	waiting  map[int]chan<- syscall.WaitStatus
	active   map[uint64]*job
	nextJob  uint64
	asRoot   *launcher
	asOther  *launcher
	noGroups bool
	oom      *oomCounter
	spared   map[int]uint64 // pid to start time, since the kernel reuses pids
	kept     map[int]uint64 // processes that a release left, in the same form
	alone    chan struct{}  // has an item after the last child has ended
}

func newProcesses(oom *oomCounter) (*processes, error) {
	asRoot, err := newLauncher(defaultCaps(), true)
	if err != nil {
		return nil, err
	}
	asOther, err := newLauncher(nil, false)
	if err != nil {
		return nil, err
	}
	p := &processes{
		waiting: map[int]chan<- syscall.WaitStatus{}, active: map[uint64]*job{}, alone: make(chan struct{}, 1), asRoot: asRoot, asOther: asOther,
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
			if errors.Is(err, syscall.ECHILD) {
				select {
				case p.alone <- struct{}{}:
				default:
				}
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

// command is a command with its path, environment and user resolved in the
// sandbox.
type command struct {
	path string
	argv []string
	env  []string
	dir  string
	open *folder // dir; nil: the command enters it by its path
	acct account
	// terminal is true if stdin is a terminal, which the command then controls.
	terminal bool
}

func (s *sandbox) command(h *header) (command, error) {
	if len(h.Args) == 0 || h.Args[0] == "" {
		return command{}, &startError{"", "no command"}
	}
	c := s.config
	acct, err := lookupAccount(cmp.Or(h.User, c.User))
	if err != nil {
		return command{}, &startError{h.Args[0], err.Error()}
	}
	env := merge([]string{"PATH=" + defaultPath, "HOME=" + acct.home, "USER=" + acct.name, "LOGNAME=" + acct.name, "LANG=C.UTF-8"}, c.Env, h.Env)
	named := cmp.Or(h.Path, c.Workdir)
	if h.Untrusted {
		s.files.guard(c.Workdir)
	}
	dir, err := s.files.workingDir(named, acct)
	if err != nil {
		return command{}, &startError{h.Args[0], err.Error()}
	}
	path, err := lookPath(h.Args[0], lookupEnv(env, "PATH"), named)
	if err != nil {
		if dir != nil {
			dir.close()
		}
		return command{}, &startError{h.Args[0], err.Error()}
	}
	return command{path: path, argv: h.Args, env: env, dir: named, open: dir, acct: acct}, nil
}

// workingDir makes the working directory of a command if it is missing. For root
// it returns the open folder. Another user enters the folder by its path, with
// the user's own rights.
func (w *walker) workingDir(path string, acct account) (*folder, error) {
	dir, err := w.folder(path, &acct, 0o755)
	if acct.uid == 0 {
		return dir, err
	}
	if err == nil {
		dir.close()
		return nil, nil
	}
	var link *linkError
	if info, serr := os.Stat(path); errors.As(err, &link) && serr == nil && info.IsDir() {
		return nil, nil
	}
	return nil, err
}

// job is one running command and the tree below it.
type job struct {
	p       *processes
	id      uint64
	pid     int
	exited  <-chan syscall.WaitStatus
	started time.Time
	nested  bool
	ooms    int64

	killing sync.Mutex // held while the tree is killed; wait returns only after that

	mu       sync.Mutex
	timedOut bool
	disk     bool // killed because it wrote too much
}

func (p *processes) start(c command, files []uintptr, sys *syscall.SysProcAttr) (*job, error) {
	l := p.asOther
	if c.acct.uid == 0 {
		l = p.asRoot
	}
	if sys == nil {
		sys = &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    c.terminal, // Ctty 0 is stdin
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
	dir := c.dir
	if c.open != nil {
		dir = ofDescriptor(c.open.fd())
	}
	pid, err := l.start(c.path, c.argv, &syscall.ProcAttr{Dir: dir, Env: c.env, Files: files, Sys: sys})
	if err != nil {
		return nil, &startError{c.argv[0], err.Error()}
	}
	// If memory runs out, the kernel should kill the command rather than the box.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("500"), 0)
	p.nextJob++
	j := &job{p: p, id: p.nextJob, pid: pid, exited: exited, started: time.Now(), ooms: ooms}
	p.waiting[pid] = exited
	p.active[j.id] = j
	return j, nil
}

func (j *job) number() uint64 { return j.id }

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
	e.TimedOut, e.Disk = j.timedOut, j.disk
	j.mu.Unlock()
	e.OOM = !e.TimedOut && !e.Disk && e.Code != 0 && j.p.oom.count() > j.ooms
	return e
}

func (j *job) timeout() {
	j.mu.Lock()
	j.timedOut = true
	j.mu.Unlock()
	j.kill()
}

// overDisk kills every command because the sandbox has written too much.
func (p *processes) overDisk() {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.active))
	p.mu.Unlock()
	for _, j := range all {
		j.mu.Lock()
		j.disk = true
		j.mu.Unlock()
		j.kill()
	}
}

func (p *processes) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.active) > 0
}

// signal sends a signal to the command's process group. SIGKILL goes to the
// whole tree.
func (j *job) signal(s syscall.Signal) {
	if s == syscall.SIGKILL {
		j.kill()
		return
	}
	if j.nested { // the first process of the namespace forwards the signal
		_ = syscall.Kill(j.pid, s)
		return
	}
	_ = syscall.Kill(-j.pid, s)
}

// kill kills the command and every process that it started, including processes
// that left its process group or lost their parent.
func (j *job) kill() {
	if j.nested { // the kernel then kills the whole namespace
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
		time.Sleep(5 * time.Millisecond) // the kernel needs a moment; then check again
	}
}

// tree lists the living processes of this job. An orphan belongs to the job if
// no other job is active and no release has left it running.
func (j *job) tree() []int {
	j.p.mu.Lock()
	alone, kept := len(j.p.active) <= 1, j.p.kept
	j.p.mu.Unlock()
	all := listProcesses()
	mine := map[int]bool{}
	for grew := true; grew; {
		grew = false
		for _, pr := range all {
			if mine[pr.pid] || pr.pid == os.Getpid() {
				continue
			}
			if pr.pid == j.pid || pr.session == j.pid || mine[pr.parent] || alone && kept[pr.pid] != pr.started {
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

// spare exempts the processes that run now from killAll.
func (p *processes) spare() {
	spared := map[int]uint64{}
	for _, pr := range listProcesses() {
		if pr.pid != os.Getpid() && !pr.dead {
			spared[pr.pid] = pr.started
		}
	}
	p.mu.Lock()
	p.spared = spared
	p.mu.Unlock()
}

// killAll kills all processes except the box and the spared ones. Only the
// first process of a namespace may call it.
func (p *processes) killAll() error {
	if os.Getpid() != 1 {
		return errors.New("the box is not the sandbox's first process")
	}
	p.mu.Lock()
	spared := p.spared
	p.mu.Unlock()
	// Stopped processes cannot fork while the list of processes is read.
	all := func() error { return syscall.Kill(-1, syscall.SIGKILL) }
	if len(spared) > 0 {
		all = p.stopAll
		defer func() {
			for pid := range spared {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}()
	}
	for range 1000 {
		_ = all()
		alive := 0
		for _, pr := range listProcesses() {
			if started, ok := spared[pr.pid]; pr.pid != 1 && !pr.dead && !(ok && started == pr.started) {
				alive++
				_ = syscall.Kill(pr.pid, syscall.SIGKILL)
			}
		}
		if alive == 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond) // the kernel needs a moment; then check again
	}
	return errors.New("processes are left that do not die")
}

// stopAll stops all processes except the box. It waits for the start of a command: a
// child that is stopped before its program runs would stop the thread that forked it,
// and with this the box.
func (p *processes) stopAll() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return syscall.Kill(-1, syscall.SIGSTOP)
}

// freeze stops all processes except the box, or continues them. Only the first process
// of a namespace may call it.
func (p *processes) freeze(frozen bool) error {
	if os.Getpid() != 1 {
		return errors.New("the box is not the sandbox's first process")
	}
	signal := p.stopAll
	if !frozen {
		signal = func() error { return syscall.Kill(-1, syscall.SIGCONT) }
	}
	if err := signal(); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal everything: %w", err)
	}
	return nil
}

type procInfo struct {
	pid, parent, session int
	started              uint64 // in clock ticks since boot
	dead                 bool
}

// startField is the index of the start time in /proc/PID/stat, counted from the
// first field after the name.
const startField = 19

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
		// The name in parentheses may contain any character, so parsing begins
		// after it.
		_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
		var state string
		var group int
		if _, err := fmt.Sscanf(rest, "%s %d %d %d", &state, &pr.parent, &group, &pr.session); !ok || err != nil {
			continue
		}
		if fields := strings.Fields(rest); len(fields) > startField {
			pr.started, _ = strconv.ParseUint(fields[startField], 10, 64)
		}
		pr.dead = state == "Z" || state == "X"
		out = append(out, pr)
	}
	return out
}
