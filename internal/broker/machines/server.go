package machines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/schema"
)

// server takes the lines that clients open, and carries their bytes.
type server struct {
	broker *broker.Broker
	timing line.Timing
	most   int // lines at once, without short ones; 0: no bound
	// admit returns the reason why a line is refused; none: it is not.
	admit func(key string, o *schema.LineOpen) (reason, text string)
	// start starts a process for a line. Its standard input and output are the stream.
	start  func(o schema.LineOpen, stream *os.File) (Process, error)
	counts *telemetry.Lines // nil: nothing counts

	lines lines
	bg    sync.WaitGroup
	life  context.Context // of lines
	cut   context.CancelCauseFunc
}

// Process is a process at the end of a line.
type Process struct {
	Wait func() schema.LineEnd
	Kill func() // is called if the process does not end with its input
}

const (
	// maxShort is the largest number of short lines at once.
	maxShort = 16
	// shortTime bounds a short line, if Timing.Short is 0.
	shortTime = 3 * time.Minute
)

// InProcess serves a line in this process. serve has the server's end of the line, which it
// closes; its context ends when the line must end.
func InProcess(ctx context.Context, stream *os.File, serve func(context.Context, net.Conn) error) (Process, error) {
	conn, err := net.FileConn(stream)
	if err != nil {
		return Process{}, fmt.Errorf("serve a line: %w", err)
	}
	life, kill := context.WithCancel(ctx)
	return Process{Kill: kill, Wait: func() schema.LineEnd {
		defer kill()
		if err := serve(life, conn); err != nil {
			return schema.LineEnd{Status: -1, Text: err.Error()}
		}
		return schema.LineEnd{}
	}}, nil
}

// endTime is the time after which a process that does not end with its stream is killed.
const endTime = 15 * time.Second

// errEnds is the cause of the end of the lines of a process that ends.
var errEnds = errors.New("the process that serves the line ends")

func (s *server) begin(ctx context.Context) {
	s.life, s.cut = context.WithCancelCause(context.WithoutCancel(ctx))
}

// end ends all lines, and their processes.
func (s *server) end() {
	s.cut(errEnds)
	s.bg.Wait()
}

// receive takes a message of a client. key names its line, and up is the subject of
// answers.
func (s *server) receive(key, up string, f line.Frame) {
	if l := s.lines.get(key); l != nil {
		l.Receive(f)
		return
	}
	switch f.Kind {
	case line.KindOpen:
		if reason, text := s.open(key, up, f); reason != "" {
			s.refuse(up, reason, text)
		}
	case line.KindReset:
	default:
		s.refuse(up, schema.LineUnknown, "the line is not open")
	}
}

// open opens a line, or returns the reason for a refusal.
func (s *server) open(key, up string, f line.Frame) (reason, text string) {
	var o schema.LineOpen
	defer func() {
		if reason != "" && reason != schema.LineUnknown { // that is a late message of a line that was taken
			s.counts.LineRefused(o.Want, reason)
		}
	}()
	if err := schema.Decode(f.Data, &o); err != nil {
		return schema.LineUnsupported, err.Error()
	}
	if reason, text := s.admit(key, &o); reason != "" {
		return reason, text
	}
	if s.life.Err() != nil {
		return schema.LineDraining, errEnds.Error()
	}
	local, other, err := line.Pair()
	if err != nil {
		return schema.LineFull, err.Error()
	}
	l := opened{line.New(local, s.timing, func(b []byte) { s.publish(up, b) }), o.Want == schema.CanDesktop}
	l.Accepts(f)
	most := s.most
	if l.short {
		most = maxShort
	}
	if !s.lines.add(key, l, most) {
		_ = local.Close() // nothing was sent
		other.Close()
		if s.lines.late(key) != nil {
			return schema.LineUnknown, "the line has ended"
		}
		if l.short {
			return schema.LineFull, "too many operations wait for the desktop"
		}
		return schema.LineFull, "all slots are taken"
	}
	s.bg.Go(func() { s.carry(l, key, o, other) })
	return "", ""
}

// carry starts the process of a line and carries its bytes.
func (s *server) carry(l opened, key string, o schema.LineOpen, stream *os.File) {
	defer s.lines.remove(key)
	ended := s.counts.LineBegan(o.Want)
	life := s.life
	if l.short { // a client that does not end it takes the place of others
		most := cmp.Or(s.timing.Short, shortTime)
		short, cancel := context.WithTimeoutCause(life, most, fmt.Errorf("the operation has not ended within %s", most))
		defer cancel()
		life = short
	}
	p, err := s.start(o, stream)
	stream.Close()
	if err != nil {
		end := schema.LineEnd{Status: -1, Text: err.Error()}
		l.Run(life, func() schema.LineEnd { return end })
		ended("", true)
		return
	}
	exited := make(chan struct{})
	var status schema.LineEnd
	s.bg.Go(func() {
		status = p.Wait()
		close(exited)
	})
	s.bg.Go(func() {
		<-l.Ended()
		late := time.NewTimer(endTime)
		defer late.Stop()
		select {
		case <-exited:
		case <-late.C:
			p.Kill()
		}
	})
	end := l.Run(life, func() schema.LineEnd {
		<-exited
		return status
	})
	<-exited
	ended(end.Reason, status.Status != 0)
}

func (s *server) refuse(up, reason, text string) {
	s.publish(up, line.ResetOf(reason, text))
}

func (s *server) publish(subject string, b []byte) { publish(s.broker, subject, b) }

// publish sends a message of a line, which sends it again if it is lost.
func publish(b *broker.Broker, subject string, m []byte) {
	if err := b.BulkConn().Publish(subject, m); err != nil { //nolint:forbidigo // this package is under broker
		b.Log().Debug().Err(err).Msg("a message of a line was not published")
	}
}
