package machines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

const (
	// announceEvery is the time between two announcements of a machine.
	announceEvery = 2 * time.Second
	// presentTime is the age of an announcement above which no line is opened.
	presentTime = 15 * time.Second
)

// Fleet is a client's view of all machines, with its lines to them.
type Fleet struct {
	broker *broker.Broker
	client string
	timing line.Timing
	lines  lines
	subs   []*nats.Subscription
	life   context.Context
	end    context.CancelCauseFunc
	bg     sync.WaitGroup

	mu      sync.Mutex
	seen    map[string]sighting
	changed chan struct{} // closed at the next announcement
}

type sighting struct {
	schema.Machine
	at time.Time
}

// NewFleet subscribes to the announcements of machines. client is the name in a worker's
// credential, or subjects.AdminClient.
func NewFleet(b *broker.Broker, client string, t line.Timing) (*Fleet, error) {
	f := &Fleet{broker: b, client: client, timing: t, seen: map[string]sighting{}, changed: make(chan struct{})}
	f.life, f.end = context.WithCancelCause(context.Background())
	for subject, handle := range map[string]nats.MsgHandler{subjects.MachinesFilter: f.onPresence, subjects.MachineUpTo(client): f.onUp} {
		sub, err := b.BulkConn().Subscribe(subject, handle) //nolint:forbidigo // this package is under broker
		if err == nil {
			f.subs = append(f.subs, sub)
			err = wire.Limit(sub)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("subscribe to machines: %w", err)
		}
	}
	if err := broker.Confirm(b.BulkConn()); err != nil { //nolint:forbidigo // this package is under broker
		f.Close()
		return nil, err
	}
	return f, nil
}

// errClosed is the cause of the end of the lines of a closed Fleet.
var errClosed = errors.New("the client ends")

// Close ends all lines.
func (f *Fleet) Close() {
	f.end(errClosed)
	f.bg.Wait()
	for _, s := range f.subs {
		_ = s.Unsubscribe() // of a closed connection it is gone
	}
}

func (f *Fleet) onPresence(m *nats.Msg) {
	var p schema.Machine
	machine, ok := subjects.ParseMachinePresence(m.Subject)
	if !ok || schema.Decode(m.Data, &p) != nil || p.Machine != machine {
		return
	}
	p.Load = schema.Known(p.Load)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	old, known := f.seen[machine]
	if known && p.Instance != old.Instance && p.Epoch <= old.Epoch && now.Sub(old.at) < f.timing.Silence {
		return // an instance that was fenced
	}
	f.seen[machine] = sighting{p, now}
	close(f.changed)
	f.changed = make(chan struct{})
}

// list returns the machines that are present, sorted by name, and a channel that is
// closed at the next announcement.
func (f *Fleet) list() (list []schema.Machine, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for machine, s := range f.seen {
		switch since := time.Since(s.at); {
		case since > f.timing.Silence:
			delete(f.seen, machine)
		case since <= presentTime && !s.Gone:
			list = append(list, s.Machine)
		}
	}
	slices.SortFunc(list, func(a, b schema.Machine) int { return cmp.Compare(a.Machine, b.Machine) })
	return list, f.changed
}

// Await calls ok with the machines that are present, again after each announcement,
// until it returns true or the context ends.
func (f *Fleet) Await(ctx context.Context, ok func([]schema.Machine) bool) error {
	for {
		list, changed := f.list()
		if ok(list) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Open opens a line for a capability to an instance of a machine. stream is this side's
// end, which Open closes in any case. The line ends with the stream's bytes, or at once
// with the context. over is called with the machine's end of the line or the reason for
// an early one, such as a refusal.
func (f *Fleet) Open(ctx context.Context, machine, instance, want string, stream *os.File, over func(schema.LineEnd)) error {
	defer stream.Close()
	conn, err := net.FileConn(stream)
	if err != nil {
		return fmt.Errorf("open a line: %w", err)
	}
	name := line.NewName()
	subject := subjects.MachineDown(machine, instance, f.client, name)
	l := line.New(conn.(*net.UnixConn), f.timing, func(m []byte) { publish(f.broker, subject, m) })
	if err := l.Wants(schema.LineOpen{Want: want}); err != nil {
		conn.Close()
		return err
	}
	key := machine + "." + name
	f.lines.add(key, opened{Line: l}, 0)
	life, stop := context.WithCancelCause(ctx)
	f.bg.Go(func() {
		defer context.AfterFunc(f.life, func() { stop(errClosed) })() //nolint:contextcheck // the line ends with both
		f.bg.Go(func() {
			if f.awaitReplaced(life, machine, instance) == nil {
				stop(errReplaced)
			}
		})
		end := l.Run(life, func() schema.LineEnd { return schema.LineEnd{} })
		stop(nil)
		f.lines.remove(key)
		over(end)
	})
	return nil
}

// errReplaced is the cause of the end of a line to an instance that is gone.
var errReplaced = errors.New("the machine's instance has ended")

// awaitReplaced waits until an instance of a machine has said its end, or a later one has
// announced itself.
func (f *Fleet) awaitReplaced(ctx context.Context, machine, instance string) error {
	for {
		f.mu.Lock()
		s, ok := f.seen[machine]
		changed := f.changed
		f.mu.Unlock()
		if ok && (s.Instance != instance || s.Gone) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (f *Fleet) onUp(m *nats.Msg) {
	machine, name, ok := subjects.ParseMachineUp(m.Subject)
	if !ok {
		return
	}
	frame, err := line.Decode(m.Data)
	if err != nil {
		return
	}
	key := machine + "." + name
	if l := f.lines.get(key); l != nil {
		l.Receive(frame)
	} else if out := f.lines.late(key); out != nil && frame.Kind != line.KindReset { // the last acknowledgement was lost
		out(line.ResetOf(schema.LineUnknown, "the line has ended"))
	}
}

// List listens for announcements for a little longer than the time between two of a
// machine, and returns them, sorted by name.
func List(ctx context.Context, b *broker.Broker) ([]schema.Machine, error) {
	f := &Fleet{broker: b, timing: line.DefaultTiming(), seen: map[string]sighting{}, changed: make(chan struct{})}
	sub, err := b.BulkConn().Subscribe(subjects.MachinesFilter, f.onPresence) //nolint:forbidigo // this package is under broker
	if err != nil {
		return nil, fmt.Errorf("listen for machines: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()             // of a closed connection it is gone
	if err := broker.Confirm(b.BulkConn()); err != nil { //nolint:forbidigo // this package is under broker
		return nil, err
	}
	late := time.NewTimer(announceEvery + announceEvery/2)
	defer late.Stop()
	select {
	case <-late.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	list, _ := f.list()
	return list, nil
}

// Retire announces, as the admin, that a machine which was shut out is gone, so that clients
// end their lines to it at once.
func Retire(b *broker.Broker, machine string) error {
	epoch := time.Now().UnixMilli()
	data, err := schema.Encode(&schema.Machine{V: schema.Version, Machine: machine, Instance: InstanceOf(epoch, "retired"), Epoch: epoch, Gone: true})
	if err == nil {
		err = b.BulkConn().Publish(subjects.MachinePresence(machine), data) //nolint:forbidigo // this package is under broker
	}
	if err == nil {
		err = b.BulkConn().FlushTimeout(wire.OpTimeout) //nolint:forbidigo // this package is under broker
	}
	if err != nil {
		return fmt.Errorf("announce the end of the machine %s: %w", machine, err)
	}
	return nil
}
