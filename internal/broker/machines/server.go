package machines

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// server takes the lines that clients open, and carries their bytes.
type server struct {
	broker *broker.Broker
	timing Timing
	most   int // lines at once; 0: no bound
	// admit returns the reason why a line is refused; none: it is not.
	admit func(o *schema.LineOpen) (reason, text string)
	// start starts a process for a line. Its standard input and output are the stream.
	start func(o schema.LineOpen, stream *os.File) (Process, error)

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
func (s *server) receive(key, up string, f frame) {
	if l := s.lines.get(key); l != nil {
		l.receive(f)
		return
	}
	switch f.kind {
	case kindOpen:
		if reason, text := s.open(key, up, f); reason != "" {
			s.refuse(up, reason, text)
		}
	case kindReset:
	default:
		s.refuse(up, schema.LineUnknown, "the line is not open")
	}
}

// open opens a line, or returns the reason for a refusal.
func (s *server) open(key, up string, f frame) (reason, text string) {
	var o schema.LineOpen
	if err := schema.Decode(f.data, &o); err != nil {
		return schema.LineUnsupported, err.Error()
	}
	if reason, text := s.admit(&o); reason != "" {
		return reason, text
	}
	if s.life.Err() != nil {
		return schema.LineDraining, errEnds.Error()
	}
	local, other, err := pair()
	if err != nil {
		return schema.LineFull, err.Error()
	}
	l := newLine(local, s.timing, func(b []byte) { s.publish(up, b) })
	l.credit, l.owe = f.credit, true
	if !s.lines.add(key, l, s.most) {
		_ = local.Close() // nothing was sent
		other.Close()
		if s.lines.late(key) != nil {
			return schema.LineUnknown, "the line has ended"
		}
		return schema.LineFull, "all slots are taken"
	}
	s.bg.Go(func() { s.carry(l, key, o, other) })
	return "", ""
}

// carry starts the process of a line and carries its bytes.
func (s *server) carry(l *line, key string, o schema.LineOpen, stream *os.File) {
	defer s.lines.remove(key)
	p, err := s.start(o, stream)
	stream.Close()
	if err != nil {
		end := schema.LineEnd{Status: -1, Text: err.Error()}
		l.run(s.life, func() schema.LineEnd { return end })
		return
	}
	exited := make(chan struct{})
	var status schema.LineEnd
	s.bg.Go(func() {
		status = p.Wait()
		close(exited)
	})
	s.bg.Go(func() {
		<-l.ended
		late := time.NewTimer(endTime)
		defer late.Stop()
		select {
		case <-exited:
		case <-late.C:
			p.Kill()
		}
	})
	l.run(s.life, func() schema.LineEnd {
		<-exited
		return status
	})
	<-exited
}

func (s *server) refuse(up, reason, text string) {
	s.publish(up, resetOf(reason, text))
}

func (s *server) publish(subject string, b []byte) { publish(s.broker, subject, b) }

// publish sends a message of a line, which sends it again if it is lost.
func publish(b *broker.Broker, subject string, m []byte) {
	if err := b.BulkConn().Publish(subject, m); err != nil { //nolint:forbidigo // this package is under broker
		b.Log().Debug().Err(err).Msg("a message of a line was not published")
	}
}
