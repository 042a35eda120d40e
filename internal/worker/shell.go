package worker

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/schema"
)

// shells are the commands of operators in the sandboxes of running rollouts.
type shells struct {
	mu      sync.Mutex
	running map[schema.ID]*looked
}

// looked is a running rollout into which operators may look.
type looked struct {
	rec  *record.Record
	life context.Context
	end  context.CancelFunc
	open sync.WaitGroup
	n    int // commands so far; guarded by shells.mu
}

// begin lets operators look into a rollout until over is called, which ends and awaits
// their commands, so that their events precede the end of the rollout.
func (s *shells) begin(ctx context.Context, id schema.ID, rec *record.Record) (over func()) {
	l := &looked{rec: rec}
	l.life, l.end = context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[schema.ID]*looked{}
	}
	s.running[id] = l
	return func() {
		s.mu.Lock()
		delete(s.running, id)
		s.mu.Unlock()
		l.end()
		l.open.Wait()
	}
}

func (s *shells) has(id schema.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[id] != nil
}

// enter counts a command of a rollout; nil: it does not run here. The caller calls
// open.Done of the rollout.
func (s *shells) enter(id schema.ID) (l *looked, number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l = s.running[id]; l == nil {
		return nil, 0
	}
	l.n++
	l.open.Add(1)
	return l, l.n
}

// Elsewhere reports whether another process of this worker may have the lines to an instance,
// or for "" a line whose instance is not known.
func (w *Worker) Elsewhere(instance string) bool {
	return instance != w.queue.Instance() && w.cfg.Process.Shared()
}

// Shell runs the command that an operator starts on a connection, in the newest sandbox of
// a rollout. It needs a Config with Reach. The result of the rollout gets a note, and each
// command events. The command ends with the context, the connection and the rollout.
func (w *Worker) Shell(ctx context.Context, o schema.LineOpen, conn net.Conn) error {
	defer conn.Close()
	l, number := w.shells.enter(o.ID)
	if l == nil {
		return fmt.Errorf("the rollout %s does not run on this worker", o.ID)
	}
	defer l.open.Done()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.life, stop)() //nolint:contextcheck // the command ends with both
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	in := w.cfg.Reach.Newest(o.ID)
	if in == nil {
		return fmt.Errorf("the rollout %s has no sandbox now", o.ID)
	}
	event := schema.ShellEvent{Number: number, By: schema.Clip(o.By, maxBy), Part: in.Part()}
	emit := func() {
		e := event
		l.rec.Events.Emit(&schema.Event{Type: schema.EventShell, Shell: &e})
	}
	var began time.Time // zero: no command was started
	exit, err := in.Relay(ctx, conn, func(user string, args []string) {
		event.User, event.Command = schema.Clip(user, maxBy), schema.Clip(strings.Join(args, " "), maxCommand)
		l.rec.Note("an operator ran commands in its sandbox: the events of type %s have them", schema.EventShell)
		emit()
		began = time.Now()
	})
	if began.IsZero() {
		return err
	}
	event.Exit = exit
	event.Ended, event.MS = true, time.Since(began).Milliseconds()
	if event.Exit == nil && err != nil {
		event.Fault = schema.Clip(err.Error(), maxCommand)
	}
	emit()
	l.rec.Log.Info().Int("number", number).Str("by", event.By).Msg("a command of an operator ended")
	return nil // the connection had the answer
}

// Bounds of texts in a ShellEvent, in bytes.
const (
	maxBy      = 100
	maxCommand = 1000
)
