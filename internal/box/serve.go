package box

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

type server struct {
	config  *Config
	files   *walker
	steady  *steady
	procs   *processes
	full    *launcher // keeps all capabilities of the box
	clock   *clock
	session *yamux.Session

	mu       sync.Mutex
	lost     func() // cancels the alarm that ends a box without its worker
	forwards []int  // ports of the forwards
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
	s := &server{config: c, files: &walker{}, steady: newSteady(), clock: newClock()}
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
	if s.procs, err = newProcesses(openOOMCounter(c.OOMFD)); err != nil {
		return ExitRoot
	}
	if s.full, err = newLauncher(allCaps(), false); err != nil {
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
		go newDiskWatch(c.DiskBytes, mounts, c.DiskSkip, s.procs.overDisk).run(nil, s.procs.busy)
		mounts.Close()
	}
	end := make(chan int, 2)
	s.clock.after(ms(c.LifeMS), func() { end <- exitLife })
	s.alive(end)
	go func() {
		for {
			stream, err := s.session.Accept()
			if err != nil {
				end <- exitLost
				return
			}
			go s.operate(stream, end)
		}
	}()
	code := <-end
	_ = s.session.Close() // first, so that the worker does not see the killed commands as exits
	_ = s.procs.killAll()
	return code
}

func allCaps() []int {
	caps := make([]int, 64)
	for i := range caps {
		caps[i] = i
	}
	return caps
}

func (c *Config) dial() (net.Conn, error) {
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

// muxConfig disables yamux's keep-alives: the box's clock alone decides whether
// a stopped worker is lost.
func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = 24 * time.Hour
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = time.Minute
	c.AcceptBacklog = 1024
	c.MaxStreamWindowSize = 1 << 20
	c.LogOutput = io.Discard
	return c
}

// alive records a sign of life of the worker.
func (s *server) alive(end chan<- int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		s.lost()
	}
	s.lost = s.clock.after(ms(s.config.LostMS), func() { end <- exitLost })
}

// operate serves one stream.
func (s *server) operate(stream net.Conn, end chan<- int) {
	defer stream.Close()
	in, out := newFrameReader(stream), &frameWriter{w: stream}
	in.limit = maxHeader
	kind, payload, err := in.next()
	in.limit = maxFrame
	if err != nil || kind != frameHeader {
		return
	}
	s.steady.restore()
	var h header
	if err := json.Unmarshal(payload, &h); err != nil {
		_ = out.json(frameFail, failure{Code: failOther, Message: err.Error()})
		return
	}
	if h.Op == opHold {
		buf := make([]byte, 16)
		for {
			if _, err := stream.Read(buf); err != nil {
				return
			}
			s.steady.restore()
			s.alive(end)
		}
	}
	if h.Op == opExec {
		err = s.exec(&h, in, out) // exec sends its own answer
		if err == nil {
			return
		}
	} else if result, rerr := s.do(&h, in, out); rerr == nil {
		_ = out.json(frameOK, result)
		return
	} else {
		err = rerr
	}
	_ = out.json(frameFail, failureOf(err))
}

// maxMessage is the most bytes of an error's message: a path in it may be long.
const maxMessage = 1 << 10

func failureOf(err error) failure {
	f := failure{Code: failOther, Message: schema.Clip(err.Error(), maxMessage)}
	var start *startError
	var large *tooLargeError
	var user *userError
	var errno syscall.Errno
	var link *linkError
	switch {
	case errors.As(err, &user):
		f.Code, f.Arg, f.Message = failNoUser, schema.Clip(user.user, maxMessage), schema.Clip(user.reason, maxMessage)
	case errors.As(err, &start):
		f.Code, f.Arg, f.Message = failNoCommand, schema.Clip(start.arg, maxMessage), schema.Clip(start.reason, maxMessage)
	case errors.As(err, &large):
		f.Code, f.Arg, f.Limit = failTooLarge, schema.Clip(large.path, maxMessage), large.limit
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		f.Code = failNotExist
	case errors.As(err, &link), errors.Is(err, errOutside), errors.As(err, &errno) && !slices.Contains(ownFailures(), errno):
		f.Code = failRefused
	}
	return f
}

// ownFailures are errors of system calls that do not come from the files.
func ownFailures() []syscall.Errno {
	return []syscall.Errno{syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN}
}

// do runs every operation except exec and hold. Its result is sent as JSON.
func (s *server) do(h *header, in *frameReader, out *frameWriter) (any, error) {
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
	case opSignal:
		s.procs.mu.Lock()
		j := s.procs.active[h.Job]
		s.procs.mu.Unlock()
		if j != nil {
			j.signal(syscall.Signal(h.Signal))
		}
		return nil, nil
	case opPorts:
		return s.ports()
	case opConnect:
		return nil, s.connect(h.Port, in, out)
	case opForward:
		return s.forward()
	case opKillAll:
		return nil, s.procs.killAll()
	case opRelease:
		return s.procs.release(h.Folders)
	case opSpare:
		s.procs.spare()
		return nil, nil
	case opFreeze:
		s.clock.pause(true)
		return nil, s.procs.freeze(true)
	case opThaw:
		s.clock.pause(false)
		return nil, s.procs.freeze(false)
	default:
		return nil, fmt.Errorf("operation %q is not known", h.Op)
	}
}
