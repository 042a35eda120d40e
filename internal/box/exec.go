package box

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

const (
	// outputGrace bounds the reading of output after the command itself has
	// ended, if a process that it left behind still holds the pipe.
	outputGrace   = 2 * time.Second
	defaultOutput = 64 << 20
)

// started reports to the worker that a command runs.
type started struct {
	Job uint64 `json:"job"`
}

// exec runs one command. The command is killed if its stream is closed early.
func (s *server) exec(h *header, in *frameReader, out *frameWriter) error {
	c, err := s.command(h)
	if err != nil {
		return err
	}
	if c.open != nil {
		defer c.open.close()
	}
	var pipes pipes
	defer pipes.close()
	if h.Terminal == nil {
		err = pipes.open()
	} else {
		err = pipes.openTerminal(*h.Terminal, c.acct)
		c.terminal = true
	}
	if err != nil {
		return err
	}
	j, err := s.startJob(h, c, &pipes)
	if err != nil {
		return err
	}
	pipes.closeChildEnds()
	if err := out.json(frameStarted, started{j.id}); err != nil {
		j.kill()
	}
	if h.TimeoutMS > 0 {
		defer s.clock.after(ms(h.TimeoutMS), j.timeout)()
	}
	ended := make(chan struct{})
	go func() {
		s.feed(in, pipes.stdin)
		select {
		case <-ended:
		default:
			j.kill() // the worker closed the stream
		}
	}()
	limit := h.Limit
	if limit <= 0 {
		limit = defaultOutput
	}
	var pumps sync.WaitGroup
	var outBytes, errBytes int64
	pumps.Go(func() { outBytes = pump(pipes.stdout, out.stream(frameStdout), limit) })
	if pipes.stderr != nil {
		pumps.Go(func() { errBytes = pump(pipes.stderr, out.stream(frameStderr), limit) })
	}
	exit := j.wait()
	forget := s.clock.after(outputGrace, func() {
		_ = pipes.stdout.SetReadDeadline(time.Now())
		if pipes.stderr != nil {
			_ = pipes.stderr.SetReadDeadline(time.Now())
		}
	})
	pumps.Wait()
	forget()
	close(ended)
	pipes.drain()
	exit.StdoutBytes, exit.StderrBytes = outBytes, errBytes
	return out.json(frameOK, exit)
}

// feed passes stdin and the sizes of a terminal on until the stream ends. It returns
// when the worker has closed the stream.
func (s *server) feed(in *frameReader, stdin io.WriteCloser) {
	other := func(kind byte, payload []byte) {
		if t, ok := stdin.(typed); ok && kind == frameResize {
			if size, ok := decodeSize(payload); ok {
				t.resize(size)
			}
		}
	}
	_, err := io.Copy(stdin, &dataReader{f: in, other: other})
	stdin.Close()
	for {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		var kind byte
		var payload []byte
		if kind, payload, err = in.next(); err != nil {
			return
		}
		other(kind, payload)
	}
}

func (s *server) startJob(h *header, c command, p *pipes) (*job, error) {
	files := []uintptr{p.childIn.Fd(), p.childOut.Fd(), p.childErr.Fd()}
	if h.Untrusted && s.config.Nest {
		return s.startNested(c, files)
	}
	return s.procs.start(c, files, nil)
}

// pipes are the three streams of one command, with both ends. With a terminal the
// command has the same end three times, and stderr is nil.
type pipes struct {
	stdin                       io.WriteCloser
	stdout, stderr              *os.File
	childIn, childOut, childErr *os.File
}

func (p *pipes) openTerminal(size sandboxes.TerminalSize, acct account) error {
	ours, user, err := openTerminal(size, acct)
	if err != nil {
		return err
	}
	p.stdin, p.stdout = typed{ours}, ours
	p.childIn, p.childOut, p.childErr = user, user, user
	return nil
}

func (p *pipes) open() error {
	var errs [3]error
	var stdin *os.File
	p.childIn, stdin, errs[0] = os.Pipe()
	p.stdin = stdin
	p.stdout, p.childOut, errs[1] = os.Pipe()
	p.stderr, p.childErr, errs[2] = os.Pipe()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("open pipes: %w", err)
		}
	}
	return nil
}

// drain reads on for processes that the command has left and that still write to its
// output. Without a reader their writes would fail. A terminal hangs up.
func (p *pipes) drain() {
	if p.stderr == nil {
		return
	}
	for _, f := range []*os.File{p.stdout, p.stderr} {
		_ = f.SetReadDeadline(time.Time{})
		go func() {
			defer f.Close()
			_, _ = io.Copy(io.Discard, f)
		}()
	}
	p.stdout, p.stderr = nil, nil
}

func (p *pipes) closeChildEnds() {
	for _, f := range []*os.File{p.childIn, p.childOut, p.childErr} {
		f.Close()
	}
}

func (p *pipes) close() {
	if _, ok := p.stdin.(typed); p.stdin != nil && !ok {
		p.stdin.Close()
	}
	for _, f := range []*os.File{p.stdout, p.stderr, p.childIn, p.childOut, p.childErr} {
		if f != nil {
			f.Close()
		}
	}
}

// nestedSpec is the command for the first process of a nested namespace. That
// process reads it from descriptor 3 and writes the exit to descriptor 4.
type nestedSpec struct {
	Path     string   `json:"path"`
	Args     []string `json:"args"`
	Env      []string `json:"env"`
	Dir      string   `json:"dir"`
	UID, GID uint32
	Groups   []uint32
	NoGroups bool
	Terminal bool `json:"terminal"`
}

// startNested runs the command in its own process namespace. The namespace's
// first process is this binary; when it ends, the kernel kills all other
// processes of the namespace. It ends with the last of them.
func (s *server) startNested(c command, files []uintptr) (*job, error) {
	specIn, specOut, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe: %w", err)
	}
	defer specIn.Close()
	defer specOut.Close()
	exitIn, exitOut, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe: %w", err)
	}
	defer exitOut.Close()
	init := command{path: "/proc/self/exe", argv: []string{"turngate", "box", "--nested"}, dir: "/"}
	sys := &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	// The first process of the namespace needs the box's own capabilities to
	// mount /proc; it drops them for the command.
	j, err := s.procs.launch(s.full, init, append(files, specIn.Fd(), exitOut.Fd()), sys)
	if err != nil {
		exitIn.Close()
		return nil, err
	}
	j.nested = true
	spec := nestedSpec{c.path, c.argv, c.env, c.dir, c.acct.uid, c.acct.gid, c.acct.groups, s.procs.noGroups, c.terminal}
	if err := json.NewEncoder(specOut).Encode(spec); err != nil {
		j.kill()
	}
	inner := j.exited
	outer := make(chan syscall.WaitStatus, 1)
	j.exited = outer
	go func() {
		defer exitIn.Close()
		var outcome struct{ Status uint32 }
		// The first process may live on, with processes that the command has left.
		if json.NewDecoder(exitIn).Decode(&outcome) == nil {
			outer <- syscall.WaitStatus(outcome.Status)
			return
		}
		outer <- <-inner
	}()
	return j, nil
}

// Nested is the main function of the first process of a nested namespace. It
// returns the process's exit code.
func Nested() int {
	cfg := Config{}
	if err := cfg.fence(); err != nil {
		return ExitRoot
	}
	dropSignals(append(passedOn(), syscall.SIGCHLD, syscall.SIGURG)...)
	var spec nestedSpec
	in, out := os.NewFile(3, "spec"), os.NewFile(4, "exit")
	unix.CloseOnExec(4)
	if err := json.NewDecoder(in).Decode(&spec); err != nil {
		return ExitConfig
	}
	in.Close()
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return ExitRoot
	}
	if err := reserveThreads(nestedThreads); err != nil {
		return ExitRoot
	}
	procs, err := newProcesses(nil)
	if err != nil {
		return ExitRoot
	}
	c := command{path: spec.Path, argv: spec.Args, env: spec.Env, dir: spec.Dir, acct: account{uid: spec.UID, gid: spec.GID, groups: spec.Groups}, terminal: spec.Terminal}
	j, err := procs.start(c, []uintptr{0, 1, 2}, nil)
	var status syscall.WaitStatus
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 127 << 8
	} else {
		for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
			f.Close()
		}
		stop := forwardSignals(j)
		status = <-j.exited
		stop()
	}
	_ = json.NewEncoder(out).Encode(struct{ Status uint32 }{uint32(status)})
	out.Close()
	if err == nil {
		<-procs.alone
	}
	return 0
}
