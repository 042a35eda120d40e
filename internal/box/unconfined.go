package box

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/hashicorp/yamux"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// unconfined is the place of a box without a sandbox: commands run as the user of this
// process and can do all that the user can. The operations on files are those in one folder.
type unconfined struct {
	root *os.Root // the folder
	name string   // of the folder for the worker
	env  []string // of every command
	user *user.User

	mu     sync.Mutex
	last   uint64
	ended  bool // no command starts any more
	active map[uint64]*group
}

// ServeUnconfined runs a box without a sandbox on a connection, which it closes, until the
// worker is lost or the box's life is over. Its commands begin in the folder dir, which the
// worker knows as c.Workdir. A command that ends takes its process group with it, and the
// box all of them, but no process that has left its group.
func ServeUnconfined(conn net.Conn, c *Config, dir string) error {
	defer conn.Close()
	who, err := user.Current()
	if err != nil {
		return fmt.Errorf("find the user of this process: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the folder: %w", err)
	}
	defer root.Close()
	in := &unconfined{root: root, name: c.Workdir, env: c.Env, user: who, active: map[uint64]*group{}}
	s := &server{config: c, place: in, clock: newClock()}
	stop := make(chan struct{})
	defer close(stop)
	go s.clock.run(stop)
	lost := s.clock.after(ms(c.LostMS), func() { _ = conn.Close() })
	defer lost()
	if err := handshake(conn, c.Secret, roleBox); err != nil {
		return err
	}
	lost()
	c.Secret = nil
	if s.session, err = yamux.Server(conn, muxConfig()); err != nil {
		return fmt.Errorf("speak to the worker: %w", err)
	}
	s.run()
	in.end()
	return nil
}

// group is a command with its process group.
type group struct {
	in      *unconfined
	id      uint64
	pid     int
	started time.Time
	exited  chan schema.Exit

	mu       sync.Mutex
	timedOut bool
	over     bool // the number of the group may be another one's by now
}

func (g *group) number() uint64 { return g.id }

func (g *group) wait() schema.Exit { return <-g.exited }

func (g *group) kill() { g.signal(syscall.SIGKILL) }

func (g *group) timeout() {
	g.mu.Lock()
	g.timedOut = true
	g.mu.Unlock()
	g.kill()
}

func (g *group) signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		_ = syscall.Kill(-g.pid, s) // its processes may have ended
	}
}

// follow waits for the command and ends the processes that it has left in its group.
func (g *group) follow(p *os.Process) {
	e := schema.Exit{Code: 1}
	state, err := p.Wait()
	if err == nil {
		if status, ok := state.Sys().(syscall.WaitStatus); ok {
			e = exitOf(status)
		}
	}
	g.kill()
	g.mu.Lock()
	g.over = true
	e.MS, e.TimedOut = time.Since(g.started).Milliseconds(), g.timedOut
	g.mu.Unlock()
	g.in.mu.Lock()
	delete(g.in.active, g.id)
	g.in.mu.Unlock()
	g.exited <- e
}

// kept are the variables of this process that commands have. Others may be secrets.
func kept() []string {
	var env []string
	for _, name := range []string{"PATH", "SHELL", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (u *unconfined) start(h *header, p *pipes) (running, error) {
	if len(h.Args) == 0 || h.Args[0] == "" {
		return nil, &startError{"", "no command"}
	}
	if err := u.check(h.User); err != nil {
		return nil, err
	}
	env := merge([]string{"PATH=" + defaultPath, "HOME=" + u.user.HomeDir, "USER=" + u.user.Username, "LOGNAME=" + u.user.Username}, kept(), u.env, h.Env)
	at, err := u.at(cmp.Or(h.Path, u.name))
	if err != nil {
		return nil, &startError{h.Args[0], err.Error()}
	}
	dir := filepath.Join(u.root.Name(), at)
	file, err := lookPath(h.Args[0], lookupEnv(env, "PATH"), dir)
	if err != nil {
		return nil, &startError{h.Args[0], err.Error()}
	}
	sys := &syscall.SysProcAttr{Setsid: true}
	if h.Terminal == nil {
		err = p.open()
	} else {
		sys.Setctty = true // Ctty 0 is stdin
		err = p.openHostTerminal(*h.Terminal)
	}
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return nil, &startError{h.Args[0], "the box ends"}
	}
	child, err := os.StartProcess(file, h.Args, &os.ProcAttr{Dir: dir, Env: env, Files: []*os.File{p.childIn, p.childOut, p.childErr}, Sys: sys})
	if err != nil {
		return nil, &startError{h.Args[0], err.Error()}
	}
	u.last++
	g := &group{in: u, id: u.last, pid: child.Pid, started: time.Now(), exited: make(chan schema.Exit, 1)}
	u.active[g.id] = g
	go g.follow(child)
	return g, nil
}

// openHostTerminal opens a terminal of this host.
func (p *pipes) openHostTerminal(size sandboxes.TerminalSize) error {
	ours, theirs, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	p.terminal(ours, theirs)
	return setSize(int(theirs.Fd()), size)
}

// check refuses every user but that of this process.
func (u *unconfined) check(name string) error {
	switch name {
	case "", u.user.Username, u.user.Uid:
		return nil
	}
	return &userError{name, fmt.Sprintf("without a sandbox commands run as %s alone", u.user.Username)}
}

func (u *unconfined) signal(job uint64, s syscall.Signal) {
	u.mu.Lock()
	g := u.active[job]
	u.mu.Unlock()
	if g != nil {
		g.signal(s)
	}
}

func (*unconfined) ports() ([]netip.AddrPort, error) {
	return nil, &needsSandboxError{"the list of ports"}
}

func (*unconfined) restore() {}

func (u *unconfined) killAll() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, g := range u.active {
		g.kill()
	}
	return nil
}

// end kills all commands, and no other starts.
func (u *unconfined) end() {
	u.mu.Lock()
	u.ended = true
	u.mu.Unlock()
	_ = u.killAll() // is always nil
}
