package machines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Machine serves lines on this host.
type Machine struct {
	Broker *broker.Broker
	Timing line.Timing
	// Self is the announcement. Its Epoch must be larger than that of every earlier
	// instance of this machine; Lines, Draining and Gone are filled in.
	Self schema.Machine
	// Measure fills in the present load; nil: none.
	Measure func(*schema.Machine)
	// Start starts a process for a line with one of the capabilities. Its standard input
	// and output are the stream.
	Start func(want string, stream *os.File) (Process, error)
	// Grace is the time that lines have after the end of the context.
	Grace time.Duration
	// End ends Serve at once with the error that it gives; nil: nothing does.
	End <-chan error
	// Counts counts the lines; nil: nothing does.
	Counts *telemetry.Lines

	server server

	mu       sync.Mutex
	draining bool
	fenced   chan error
}

// InstanceOf is the name of the instance of an epoch.
func InstanceOf(epoch int64, random string) string {
	return strconv.FormatInt(epoch, 10) + "-" + random
}

// epochOf reads the epoch of an instance; 0 if it has none.
func epochOf(instance string) int64 {
	text, _, _ := strings.Cut(instance, "-")
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return epoch
}

// ErrFenced means that a later instance of the machine has begun.
var ErrFenced = errors.New("a later instance of this machine is there")

// Serve announces the machine and serves lines until the context ends. Then it takes
// no more lines, waits for the open ones, and says that the machine is gone. It
// returns ErrFenced if a later instance of the machine announces itself, and the error of
// End.
func (m *Machine) Serve(ctx context.Context) error {
	m.fenced = make(chan error, 1)
	m.server = server{
		broker: m.Broker, timing: m.Timing, most: m.Self.Slots, admit: m.admit, counts: m.Counts,
		start: func(o schema.LineOpen, stream *os.File) (Process, error) { return m.Start(o.Want, stream) },
	}
	m.server.begin(ctx)
	defer m.server.end()
	conn := m.Broker.BulkConn() //nolint:forbidigo // this package is under broker
	for subject, handle := range map[string]nats.MsgHandler{subjects.MachineDownOf(m.Self.Machine): m.onDown, subjects.MachinePresence(m.Self.Machine): m.onPresence} {
		sub, err := conn.Subscribe(subject, handle)
		if err == nil {
			defer func() { _ = sub.Unsubscribe() }() // of a closed connection it is gone
			err = wire.Limit(sub)
		}
		if err != nil {
			return fmt.Errorf("serve the machine %s: %w", m.Self.Machine, err)
		}
	}
	if err := broker.Confirm(conn); err != nil {
		return err
	}
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		m.announce(false)
		select {
		case <-tick.C:
		case err := <-m.fenced:
			return err
		case err := <-m.End:
			return err
		case <-ctx.Done():
			return m.drain(tick.C)
		}
	}
}

// drain waits for the open lines.
func (m *Machine) drain(tick <-chan time.Time) error {
	m.mu.Lock()
	m.draining = true
	m.mu.Unlock()
	grace := time.NewTimer(m.Grace)
	defer grace.Stop()
	waiting := true
	for waiting && m.server.lines.count() > 0 {
		m.announce(false)
		select {
		case <-tick:
		case <-grace.C:
			waiting = false
		case err := <-m.fenced:
			return err
		case err := <-m.End:
			return err
		}
	}
	m.server.end()
	m.announce(true)
	if err := m.Broker.BulkConn().FlushTimeout(wire.OpTimeout); err != nil { //nolint:forbidigo // this package is under broker
		m.Broker.Log().Warn().Err(err).Msg("the end of the machine was not announced")
	}
	return nil
}

func (m *Machine) announce(gone bool) {
	p := m.Self
	m.mu.Lock()
	p.Draining = m.draining
	m.mu.Unlock()
	p.V, p.Lines, p.Gone = schema.Version, m.server.lines.count(), gone
	if m.Measure != nil {
		m.Measure(&p)
	}
	data, err := schema.Encode(&p)
	if err == nil {
		err = m.Broker.BulkConn().Publish(subjects.MachinePresence(p.Machine), data) //nolint:forbidigo // this package is under broker
	}
	if err != nil {
		m.Broker.Log().Debug().Err(err).Msg("the machine was not announced")
	}
}

// onPresence hears other instances of this machine.
func (m *Machine) onPresence(msg *nats.Msg) {
	var p schema.Machine
	if schema.Decode(msg.Data, &p) != nil || p.Machine != m.Self.Machine || p.Instance == m.Self.Instance {
		return
	}
	if p.Epoch > m.Self.Epoch || p.Epoch == m.Self.Epoch && p.Instance > m.Self.Instance {
		select {
		case m.fenced <- fmt.Errorf("%w: %s", ErrFenced, p.Instance):
		default:
		}
	}
}

// onDown takes a message of a client.
func (m *Machine) onDown(msg *nats.Msg) {
	instance, client, name, ok := subjects.ParseMachineDown(msg.Subject)
	if !ok {
		return
	}
	f, err := line.Decode(msg.Data)
	if err != nil {
		return
	}
	up := subjects.MachineUp(m.Self.Machine, client, name)
	if instance != m.Self.Instance {
		if epochOf(instance) < m.Self.Epoch && f.Kind != line.KindReset { // a later instance answers by itself
			m.server.refuse(up, schema.LineFenced, "the instance "+instance+" of the machine has ended")
		}
		return
	}
	m.server.receive(client+"."+name, up, f)
}

// admit returns the reason why a line is refused; none: it is not.
func (m *Machine) admit(key string, o *schema.LineOpen) (reason, text string) {
	client, _, _ := strings.Cut(key, ".")
	m.mu.Lock()
	draining := m.draining
	m.mu.Unlock()
	switch missing, lacks := m.Self.Missing[o.Want]; {
	case lacks:
		return schema.LineUnsupported, missing
	case o.Want != schema.CanSandbox && o.Want != schema.CanWorkspace && o.Want != schema.CanDesktop:
		return schema.LineUnsupported, "a machine has no " + o.Want
	case o.Want == schema.CanWorkspace && client != subjects.AdminClient:
		return schema.LineUnsupported, "only the admin works in its workspace"
	case o.Want == schema.CanDesktop && client != subjects.AdminClient:
		return schema.LineUnsupported, "only the admin uses its desktop"
	case draining:
		return schema.LineDraining, "the machine takes no more work"
	}
	return "", ""
}
