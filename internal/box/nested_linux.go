package box

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

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
func (s *sandbox) startNested(c command, files []uintptr) (*job, error) {
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
	caught := make(chan os.Signal, 16)
	for _, n := range passedOn() {
		signal.Notify(caught, n) // from here on, since the box and, when it begins, the command may send them at once
	}
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
		status = j.passOn(caught)
	}
	_ = json.NewEncoder(out).Encode(struct{ Status uint32 }{uint32(status)})
	out.Close()
	if err == nil {
		<-procs.alone
	}
	return 0
}
