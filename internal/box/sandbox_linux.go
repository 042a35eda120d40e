package box

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/turngate/turngate/sandboxes"
)

// sandbox is the place of a box that is the first process of a sandbox.
type sandbox struct {
	config *Config
	files  *walker
	steady *steady
	procs  *processes
	full   *launcher // keeps all capabilities of the box
}

// Serve runs the box. It returns the process's exit code when the sandbox must
// end. It must run as the first process of its namespace.
func Serve(c *Config) int {
	dropSignals(syscall.SIGCHLD, syscall.SIGURG)
	conn, err := c.dial()
	if err != nil {
		return exitConnect
	}
	if err := c.fence(); err != nil {
		return ExitRoot
	}
	in := &sandbox{config: c, files: &walker{}, steady: newSteady()}
	s := &server{config: c, place: in, clock: newClock()}
	go s.clock.run(nil)
	lost := s.clock.after(ms(c.LostMS), func() { _ = conn.Close() })
	if err := handshake(conn, c.Secret, roleBox); err != nil {
		return exitConnect
	}
	lost()
	c.Secret = nil
	if err := reserveThreads(boxThreads); err != nil {
		return ExitRoot
	}
	if in.procs, err = newProcesses(openOOMCounter(c.OOMFD)); err != nil {
		return ExitRoot
	}
	if in.full, err = newLauncher(allCaps(), false); err != nil {
		return ExitRoot
	}
	if s.session, err = yamux.Server(conn, muxConfig()); err != nil {
		return exitConnect
	}
	if c.DiskBytes > 0 {
		mounts, err := os.Open("/proc/self/mountinfo")
		if err != nil {
			return ExitRoot
		}
		go newDiskWatch(c.DiskBytes, mounts, c.DiskSkip, in.procs.overDisk).run(nil, in.procs.busy)
		mounts.Close()
	}
	return s.run()
}

func allCaps() []int {
	caps := make([]int, 64)
	for i := range caps {
		caps[i] = i
	}
	return caps
}

func (c *Config) dial() (io.ReadWriteCloser, error) {
	if c.Stdio {
		return openStdio(c.Ahead)
	}
	if c.Socket == "" {
		f := os.NewFile(uintptr(c.FD), "worker")
		defer f.Close()
		return net.FileConn(f)
	}
	var err error
	for range 50 {
		var conn net.Conn
		if conn, err = net.Dial("unix", c.Socket); err == nil {
			return conn, nil
		}
		time.Sleep(20 * time.Millisecond) // the worker may not listen yet
	}
	return nil, fmt.Errorf("reach the worker: %w", err)
}

func (s *sandbox) restore()       { s.steady.restore() }
func (s *sandbox) killAll() error { return s.procs.killAll() }

func (s *sandbox) ports() ([]netip.AddrPort, error) { return listeningHere() }

func (s *sandbox) signal(id uint64, n syscall.Signal) {
	s.procs.mu.Lock()
	j := s.procs.active[id]
	s.procs.mu.Unlock()
	if j != nil {
		j.signal(n)
	}
}

func (s *sandbox) start(h *header, p *pipes) (running, error) {
	c, err := s.command(h)
	if err != nil {
		return nil, err
	}
	if c.open != nil {
		defer c.open.close()
	}
	if h.Terminal == nil {
		err = p.open()
	} else {
		err = p.openTerminal(*h.Terminal, c.acct)
		c.terminal = true
	}
	if err != nil {
		return nil, err
	}
	files := []uintptr{p.childIn.Fd(), p.childOut.Fd(), p.childErr.Fd()}
	var j *job
	if h.Untrusted && s.config.Nest {
		j, err = s.startNested(c, files)
	} else {
		j, err = s.procs.start(c, files, nil)
	}
	if err != nil {
		return nil, err
	}
	return j, nil
}

func (p *pipes) openTerminal(size sandboxes.TerminalSize, acct account) error {
	ours, user, err := openTerminal(size, acct)
	if err != nil {
		return err
	}
	p.terminal(ours, user)
	return nil
}

// do runs the operations on files, and those on the processes of the sandbox.
func (s *sandbox) do(h *header, in *frameReader, out *frameWriter) (any, error) {
	owner, err := lookupAccount(cmp.Or(h.Owner, s.config.User))
	if err != nil {
		return nil, err
	}
	switch h.Op {
	case opRead:
		return nil, s.files.readFile(h.Path, h.Limit, out.stream(frameData))
	case opWrite:
		return nil, s.files.writeFile(h.Path, fs.FileMode(h.Mode).Perm(), owner, &dataReader{f: in})
	case opStat:
		return s.files.stat(h.Path)
	case opList:
		list, err := s.files.listDir(h.Path, sandboxes.MaxList)
		if err != nil {
			return nil, err
		}
		return nil, json.NewEncoder(out.stream(frameData)).Encode(list)
	case opMkdir:
		return nil, s.files.makeDir(h.Path, fs.FileMode(h.Mode).Perm(), &owner)
	case opEmpty:
		return nil, makeEmpty(h.Path, fs.FileMode(h.Mode).Perm(), &owner)
	case opRemove:
		return nil, s.files.removeAll(h.Path)
	case opTarIn:
		r := &dataReader{f: in}
		if err := s.files.tarIn(h.Path, owner, r); err != nil {
			return nil, err
		}
		_, err := io.Copy(io.Discard, r) // padding after the archive
		return nil, err
	case opTarOut:
		return nil, s.files.tarOut(h.Path, sandboxes.TarOptions{Limit: h.Limit, Exclude: h.Exclude, Links: h.Links}, out.stream(frameData))
	case opRelease:
		return s.procs.release(h.Folders)
	case opSpare:
		s.procs.spare()
		return nil, nil
	case opFreeze:
		return nil, s.procs.freeze(true)
	case opThaw:
		return nil, s.procs.freeze(false)
	default:
		return nil, unknown(h.Op)
	}
}
