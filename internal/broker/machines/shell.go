package machines

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// maxShells is the largest number of lines that operators have to a worker at once.
const maxShells = 16

// Shells serves the lines of operators to a worker.
type Shells struct {
	server server
	sub    *nats.Subscription
}

// ServeShells serves operators until Close. serve has the worker's end of each line, which
// it closes. Its context ends with the line. elsewhere reports whether another process of
// the worker may have the lines to an instance, or for "" any line that is not open here:
// then that one answers.
func ServeShells(ctx context.Context, b *broker.Broker, worker string, t line.Timing, serve func(context.Context, schema.LineOpen, net.Conn) error, elsewhere func(instance string) bool) (*Shells, error) {
	s := &Shells{}
	s.server = server{
		broker: b, timing: t, most: maxShells,
		admit: func(_ string, o *schema.LineOpen) (reason, text string) {
			if o.Want != schema.CanShell {
				return schema.LineUnsupported, "a worker has no " + o.Want
			}
			return "", ""
		},
		start: func(o schema.LineOpen, stream *os.File) (Process, error) { //nolint:contextcheck // a line has the life of the server
			return InProcess(s.server.life, stream, func(life context.Context, conn net.Conn) error { return serve(life, o, conn) })
		},
	}
	s.server.begin(ctx)
	sub, err := b.BulkConn().Subscribe(subjects.ShellDown(worker, "*"), func(m *nats.Msg) { //nolint:forbidigo,contextcheck // this package is under broker; a line has the life of the server
		name, ok := subjects.ParseShellDown(m.Subject)
		if !ok {
			return
		}
		f, err := line.Decode(m.Data)
		if err != nil || !s.server.lines.knows(name) && elsewhere(opens(f)) {
			return
		}
		s.server.receive(name, subjects.ShellUp(worker, name), f)
	})
	if err == nil {
		s.sub = sub
		err = wire.Limit(sub)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("serve shells of %s: %w", worker, err)
	}
	return s, nil
}

// opens returns the instance to which a message opens a line; "": it opens none.
func opens(f line.Frame) string {
	var o schema.LineOpen
	if f.Kind != line.KindOpen || schema.Decode(f.Data, &o) != nil {
		return ""
	}
	return o.Instance
}

// Close ends all lines.
func (s *Shells) Close() {
	if s.sub != nil {
		_ = s.sub.Unsubscribe() // of a closed connection it is gone
	}
	s.server.end()
}

// Shell is an operator's end of a line to a worker. Its bytes end with the line.
type Shell struct {
	net.Conn
	done chan struct{}
	end  schema.LineEnd
}

// OpenShell opens a line to a worker. It ends with the context.
func OpenShell(ctx context.Context, b *broker.Broker, worker string, t line.Timing, o schema.LineOpen) (*Shell, error) {
	local, other, err := line.Pair()
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(other)
	other.Close()
	if err != nil {
		_ = local.Close() // nothing was sent
		return nil, fmt.Errorf("open a line: %w", err)
	}
	name := line.NewName()
	down := subjects.ShellDown(worker, name)
	l := line.New(local, t, func(m []byte) { publish(b, down, m) })
	err = l.Wants(o)
	var sub *nats.Subscription
	if err == nil {
		sub, err = b.BulkConn().Subscribe(subjects.ShellUp(worker, name), func(m *nats.Msg) { //nolint:forbidigo // this package is under broker
			if f, err := line.Decode(m.Data); err == nil {
				l.Receive(f)
			}
		})
	}
	if err == nil {
		if err = broker.Confirm(b.BulkConn()); err != nil { //nolint:forbidigo // this package is under broker
			_ = sub.Unsubscribe() // of a closed connection it is gone
		}
	}
	if err != nil {
		_ = local.Close() // nothing was sent
		conn.Close()
		return nil, fmt.Errorf("open a line to %s: %w", worker, err)
	}
	s := &Shell{Conn: conn, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.end = l.Run(ctx, func() schema.LineEnd { return schema.LineEnd{} })
		_ = sub.Unsubscribe() // of a closed connection it is gone
	}()
	return s, nil
}

// partTime bounds the wait for the other side after the local end was closed.
const partTime = 5 * time.Second

// End closes this end, and returns the end of the other side, or the reason for an early
// one. It waits for it for a few seconds.
func (s *Shell) End() schema.LineEnd {
	_ = s.Close() // it may be closed already
	late := time.NewTimer(partTime)
	defer late.Stop()
	select {
	case <-s.done:
		return s.end
	case <-late.C:
		return schema.LineEnd{Reason: schema.LineSilent, Text: "the worker does not answer"}
	}
}
