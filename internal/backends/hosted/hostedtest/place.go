// Package hostedtest has the sandboxes of test servers: processes of this host, each sandbox
// with a home of its own. It isolates nothing.
package hostedtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Place is the home and the processes of a sandbox.
type Place struct {
	Home string

	mu    sync.Mutex
	procs map[int]*Process
	gone  bool
}

// NewPlace makes a home.
func NewPlace(home string) (*Place, error) {
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	return &Place{Home: home, procs: map[int]*Process{}}, nil
}

// Path resolves a path of a client. A place shows no other folder than its home.
func (p *Place) Path(path string) (string, error) {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = strings.TrimPrefix(path[1:], "/")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.Home, path)
	}
	path = filepath.Clean(path)
	if path != p.Home && !strings.HasPrefix(path, p.Home+"/") {
		return "", fmt.Errorf("%s is not in the home %s: the test server shows nothing else", path, p.Home)
	}
	return path, nil
}

// Write stores a file with its folders.
func Write(path string, from io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// Processes returns the processes that live, by their pids.
func (p *Place) Processes() map[int]*Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[int]*Process{}
	for pid, proc := range p.procs {
		all[pid] = proc
	}
	return all
}

// Pids returns the pids of the processes that live.
func (p *Place) Pids() (pids []int) {
	for pid := range p.Processes() {
		pids = append(pids, pid)
	}
	return pids
}

// Command is a process to start.
type Command struct {
	Args  []string
	Dir   string // in the home; empty: the home
	Env   map[string]string
	Stdin bool
	Limit time.Duration // the process is killed after it; 0: none
}

// Start starts a process. The channel has all its events.
func (p *Place) Start(c Command) (*Process, chan Event, error) {
	dir, err := p.Path(c.Dir)
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, fmt.Errorf("cwd '%s' does not exist", dir)
	}
	proc := &Process{killed: make(chan struct{}), ended: make(chan struct{}), readers: map[chan Event]chan struct{}{}}
	proc.cmd = exec.Command("/bin/sh", append([]string{"-c", `exec "$@"`, "--"}, c.Args...)...)
	proc.cmd.Dir = dir
	proc.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.Home, "USER=root", "LOGNAME=root"}
	for key, value := range c.Env {
		proc.cmd.Env = append(proc.cmd.Env, key+"="+value)
	}
	proc.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // keys of a terminal are for the test
	var outputs [2]io.ReadCloser
	if outputs[0], err = proc.cmd.StdoutPipe(); err == nil {
		outputs[1], err = proc.cmd.StderrPipe()
	}
	if err == nil && c.Stdin {
		proc.stdin, err = proc.cmd.StdinPipe()
	}
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil, nil, errors.New("the sandbox is gone")
	}
	if err := proc.cmd.Start(); err != nil {
		return nil, nil, err
	}
	pid := proc.cmd.Process.Pid
	p.procs[pid] = proc
	events := proc.Read()
	if c.Limit > 0 {
		time.AfterFunc(c.Limit, func() { proc.Signal(syscall.SIGKILL) })
	}
	go func() {
		defer close(proc.ended)
		proc.run(outputs, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.procs, pid)
		})
	}()
	return proc, events, nil
}

// graceTime is the time that the processes of a sandbox have to remove their traces on this
// host. With a virtual machine these would end, too.
const graceTime = 10 * time.Second

// End ends the processes with their children, and removes the home.
func (p *Place) End() {
	p.mu.Lock()
	p.gone = true
	var all []*Process
	for _, proc := range p.procs {
		all = append(all, proc)
	}
	p.mu.Unlock()
	late := time.AfterFunc(graceTime, func() {
		for _, proc := range all {
			killTree(proc.cmd.Process.Pid)
		}
	})
	defer late.Stop()
	for _, proc := range all {
		proc.Signal(syscall.SIGTERM)
		<-proc.ended
	}
	os.RemoveAll(p.Home)
}

// killTree kills a process and its children.
func killTree(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP) // it makes no more of them
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for field := range strings.FieldsSeq(string(data)) {
		var child int
		if _, err := fmt.Sscan(field, &child); err == nil {
			killTree(child)
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
