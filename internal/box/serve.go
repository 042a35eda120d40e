package box

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/turngate/turngate/schema"
)

// server is a box, which serves the operations of one worker.
type server struct {
	config  *Config
	place   place
	clock   *clock
	session *yamux.Session

	mu       sync.Mutex
	lost     func() // cancels the alarm that ends a box without its worker
	forwards []int  // ports of the forwards
}

// place has the commands and the files of a box.
type place interface {
	// start starts the command of an operation, with its streams in p.
	start(h *header, p *pipes) (running, error)
	// signal sends a signal to a command; one that has ended needs none.
	signal(job uint64, s syscall.Signal)
	// do runs an operation that is not one of server.do. Its result is sent as JSON.
	do(h *header, in *frameReader, out *frameWriter) (any, error)
	// ports lists the TCP ports on which processes listen, with the box's ports.
	ports() ([]netip.AddrPort, error)
	// restore undoes changes of processes to the box.
	restore()
	// killAll kills all processes.
	killAll() error
}

// running is a command that runs.
type running interface {
	number() uint64
	// wait returns the exit of the command. Call it once.
	wait() schema.Exit
	kill()
	timeout() // kills it, too
}

// run serves the worker until the box must end, and returns the process's exit code.
func (s *server) run() int {
	end := make(chan int, 2)
	s.clock.after(ms(s.config.LifeMS), func() { end <- exitLife })
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
	_ = s.place.killAll()
	return code
}

// muxConfig disables yamux's keep-alives: the box's clock alone decides whether
// a stopped worker is lost.
func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = 24 * time.Hour
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = 2 * time.Minute // longer than a connection may be away
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
	s.place.restore()
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
			s.place.restore()
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

// do runs every operation except exec and hold. Its result is sent as JSON.
func (s *server) do(h *header, in *frameReader, out *frameWriter) (any, error) {
	switch h.Op {
	case opSignal:
		s.place.signal(h.Job, syscall.Signal(h.Signal))
		return nil, nil
	case opPorts:
		return s.ports()
	case opConnect:
		return nil, s.connect(h.Port, in, out)
	case opForward:
		return s.forward(h.Port)
	case opKillAll:
		return nil, s.place.killAll()
	case opFreeze, opThaw:
		frozen := h.Op == opFreeze
		s.clock.pause(frozen)
		result, err := s.place.do(h, in, out)
		if err != nil && frozen {
			s.clock.pause(false)
		}
		return result, err
	}
	return s.place.do(h, in, out)
}

// unknown is the error of an operation that a place does not have.
func unknown(op string) error { return fmt.Errorf("operation %q is not known", op) }
