package machines_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server with a worker and machines, each behind a proxy of its own.
type world struct {
	nats            testenv.NATS
	fleet           *machines.Fleet
	timing          line.Timing
	worker, machine *testenv.Proxy
}

func newWorld(t *testing.T, timing line.Timing) *world {
	t.Helper()
	n := testenv.StartNATS(t)
	w := &world{nats: n, timing: timing}
	u, err := url.Parse(n.URL())
	harness.Must(t, err)
	w.worker, w.machine = testenv.NewProxy(t, u.Host), testenv.NewProxy(t, u.Host)
	w.fleet, err = machines.NewFleet(w.dial(t, w.worker.URL(), n.AdmitWorker(t, "w1"), "worker", "w1"), "w1", timing)
	harness.Must(t, err)
	t.Cleanup(w.fleet.Close)
	harness.Must(t, n.AddMachine("m1", ""))
	harness.Must(t, n.Reload())
	return w
}

func (w *world) dial(t *testing.T, url, creds, role, name string) *broker.Broker {
	t.Helper()
	b, err := broker.Dial(t.Context(), broker.Config{URL: url, Creds: creds, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
	harness.Must(t, err)
	t.Cleanup(b.Close)
	return b
}

// echo is a process that returns its input, and then says how many bytes it had.
func echo(_ string, stream *os.File) (machines.Process, error) {
	conn, err := net.FileConn(stream)
	if err != nil {
		return machines.Process{}, err
	}
	done, n := make(chan struct{}), int64(0)
	go func() {
		defer close(done)
		n, _ = io.Copy(conn, conn)
		conn.Close()
	}()
	return machines.Process{Kill: func() { conn.Close() }, Wait: func() schema.LineEnd {
		<-done
		return schema.LineEnd{Status: int(n % 251), Text: "bye"}
	}}, nil
}

// serve runs an instance of m1 until stop is called, which returns Serve's error.
func (w *world) serve(t *testing.T, epoch int64, change func(*machines.Machine)) (instance string, stop func() error) {
	t.Helper()
	instance = machines.InstanceOf(epoch, "aa")
	m := &machines.Machine{
		Broker: w.dial(t, w.machine.URL(), w.nats.MachineCreds("m1"), "machine", "m1"), Timing: w.timing, Start: echo, Grace: time.Minute,
		Self: schema.Machine{Machine: "m1", Instance: instance, Epoch: epoch, Program: "p", Slots: 2},
	}
	if change != nil {
		change(m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx) }()
	stopped := false
	stop = func() error {
		cancel()
		stopped = true
		return <-done
	}
	t.Cleanup(func() {
		if !stopped {
			_ = stop()
		}
	})
	return instance, stop
}

// await waits until the worker sees an instance of m1 for which ok returns true.
func (w *world) await(t *testing.T, instance string, ok func(schema.Machine) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	harness.Must(t, w.fleet.Await(ctx, func(all []schema.Machine) bool {
		for _, m := range all {
			if m.Instance == instance && (ok == nil || ok(m)) {
				return true
			}
		}
		return false
	}))
}

type call struct {
	conn *net.UnixConn
	over chan schema.LineEnd
	stop context.CancelFunc
}

func (w *world) open(t *testing.T, instance, want string) *call {
	t.Helper()
	conn, theirs, err := line.Pair()
	harness.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	c := &call{conn, make(chan schema.LineEnd, 1), stop}
	harness.Must(t, w.fleet.Open(ctx, "m1", instance, want, theirs, func(e schema.LineEnd) { c.over <- e }))
	t.Cleanup(func() { conn.Close(); stop() })
	return c
}

// ends returns the end of a line.
func (c *call) ends(t *testing.T) schema.LineEnd {
	t.Helper()
	select {
	case e := <-c.over:
		return e
	case <-time.After(2 * time.Minute):
		t.Fatal("the line has no end")
		return schema.LineEnd{}
	}
}

// exchange sends bytes, closes the direction, and checks that the same bytes return.
func (c *call) exchange(t *testing.T, data []byte) {
	t.Helper()
	go func() {
		_, _ = c.conn.Write(data) // a short one shows below
		_ = c.conn.CloseWrite()
	}()
	got, err := io.ReadAll(c.conn)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("sent %d bytes, got %d back that are not the same: %v", len(data), len(got), err)
	}
	c.conn.Close()
	if e := c.ends(t); e.Reason != "" || e.Text != "bye" || e.Status != len(data)%251 {
		t.Fatalf("the end %+v", e)
	}
}

// TestBytesArriveThroughCutsAndLosses: each byte arrives once and in order, while the
// connections of both sides are cut again and again and messages are lost, and the
// process on the machine runs once.
func TestBytesArriveThroughCutsAndLosses(t *testing.T) {
	testenv.Slow(t)
	w := newWorld(t, line.DefaultTiming())
	instance, _ := w.serve(t, 1, nil)
	w.await(t, instance, nil)
	w.open(t, instance, schema.CanSandbox).exchange(t, nil)
	w.open(t, instance, schema.CanSandbox).exchange(t, harness.Noise(5<<20))
	w.worker.Lose(0.02, 0.02)
	w.machine.Lose(0.02, 0.02)
	cuts, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(cuts)
		for tick := time.NewTicker(700 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				p := []*testenv.Proxy{w.worker, w.machine}[rand.IntN(2)]
				p.Cut()
			}
		}
	}()
	for n := 0; n == 0; n = w.worker.Lost() + w.machine.Lost() { // until a message was lost
		w.open(t, instance, schema.CanSandbox).exchange(t, harness.Noise(3<<20))
	}
	close(stop)
	<-cuts
}

// TestALineOutlivesAPartition: bytes that are written while nothing passes arrive
// afterwards.
func TestALineOutlivesAPartition(t *testing.T) {
	w := newWorld(t, line.DefaultTiming())
	instance, _ := w.serve(t, 1, nil)
	w.await(t, instance, nil)
	c := w.open(t, instance, schema.CanSandbox)
	_, err := c.conn.Write([]byte("a"))
	harness.Must(t, err)
	one := make([]byte, 1)
	_, err = io.ReadFull(c.conn, one)
	harness.Must(t, err)
	w.machine.Set(true, true, 0)
	w.machine.Cut()
	_, err = c.conn.Write([]byte("b"))
	harness.Must(t, err)
	w.machine.Heal()
	_, err = io.ReadFull(c.conn, one)
	if err != nil || one[0] != 'b' {
		t.Fatalf("got %q, %v", one, err)
	}
}

// TestRefusals: each reason reaches the client.
func TestRefusals(t *testing.T) {
	w, metrics := newWorld(t, line.DefaultTiming()), telemetry.New("test")
	counts := metrics.Lines(2)
	bare, stop := w.serve(t, 4, func(m *machines.Machine) {
		m.Self.Missing, m.Counts = map[string]string{schema.CanSandbox: "no namespaces"}, counts
	})
	w.await(t, bare, nil)
	if e := w.open(t, bare, schema.CanSandbox).ends(t); e.Reason != schema.LineUnsupported || e.Text != "no namespaces" {
		t.Errorf("a machine without sandboxes: %+v", e)
	}
	harness.Must(t, stop())
	instance, stop := w.serve(t, 5, func(m *machines.Machine) { m.Counts = counts })
	w.await(t, instance, nil)
	if e := w.open(t, instance, schema.CanWorkspace).ends(t); e.Reason != schema.LineUnsupported || !strings.Contains(e.Text, "admin") {
		t.Errorf("a worker in the workspace: %+v", e)
	}
	if e := w.open(t, instance, schema.CanDesktop).ends(t); e.Reason != schema.LineUnsupported || !strings.Contains(e.Text, "admin") {
		t.Errorf("a worker at the desktop: %+v", e)
	}
	first, second := w.open(t, instance, schema.CanSandbox), w.open(t, instance, schema.CanSandbox)
	w.await(t, instance, func(m schema.Machine) bool { return m.Lines == 2 })
	testenv.ShowsMetrics(t, metrics, `turngate_machine_lines_open{kind="sandbox"} 2`)
	if e := w.open(t, instance, schema.CanSandbox).ends(t); e.Reason != schema.LineFull {
		t.Errorf("a third line: %+v", e)
	}
	first.exchange(t, []byte("x"))
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	w.await(t, instance, func(m schema.Machine) bool { return m.Draining })
	if e := w.open(t, instance, schema.CanSandbox).ends(t); e.Reason != schema.LineDraining {
		t.Errorf("while it drains: %+v", e)
	}
	second.exchange(t, harness.Noise(100_000)) // drains
	harness.Must(t, <-stopped)
	harness.Must(t, w.fleet.Await(t.Context(), func(all []schema.Machine) bool { return len(all) == 0 })) // at once, by the notice
	// echo's status is not 0
	testenv.ShowsMetrics(t, metrics, `turngate_machine_lines_open{kind="sandbox"} 0`, `turngate_machine_lines_total{kind="sandbox",outcome="failed"} 2`)
	for _, r := range []string{`kind="sandbox",reason="unsupported"`, `kind="workspace",reason="unsupported"`, `kind="desktop",reason="unsupported"`, `kind="sandbox",reason="full"`, `kind="sandbox",reason="draining"`} {
		testenv.ShowsMetrics(t, metrics, "turngate_machine_lines_refused_total{"+r+"}") // a client may ask twice
	}
}

// TestAShortLineHasABound: a client that sends nothing and does not end does not keep the
// place of an operation on the desktop.
func TestAShortLineHasABound(t *testing.T) {
	w := newWorld(t, line.DefaultTiming())
	instance, _ := w.serve(t, 1, func(m *machines.Machine) { m.Timing.Short = 300 * time.Millisecond })
	w.await(t, instance, nil)
	admin, err := machines.NewFleet(w.dial(t, w.nats.URL(), w.nats.AdminCreds(), broker.RoleAdmin, broker.RoleAdmin), subjects.AdminClient, line.DefaultTiming())
	harness.Must(t, err)
	t.Cleanup(admin.Close)
	long := w.open(t, instance, schema.CanSandbox)
	w.fleet = admin
	w.await(t, instance, nil)
	if e := w.open(t, instance, schema.CanDesktop).ends(t); e.Reason != schema.LineClosed || !strings.Contains(e.Text, "within 300ms") {
		t.Errorf("the end %+v", e)
	}
	long.exchange(t, []byte("still here"))
}

// TestALaterInstanceFences: the earlier one ends, its lines end, and the lines to the
// later one work. An announcement of the earlier one that comes late changes nothing.
func TestALaterInstanceFences(t *testing.T) {
	w := newWorld(t, line.DefaultTiming())
	first, stopFirst := w.serve(t, 1, nil)
	w.await(t, first, nil)
	old := w.open(t, first, schema.CanSandbox)
	w.await(t, first, func(m schema.Machine) bool { return m.Lines == 1 })
	second, _ := w.serve(t, 2, nil)
	w.await(t, second, nil)
	old.ends(t)
	if err := stopFirst(); !errors.Is(err, machines.ErrFenced) || !strings.Contains(err.Error(), second) {
		t.Errorf("the earlier instance ends with %v", err)
	}
	third, stopThird := w.serve(t, 1, func(m *machines.Machine) { m.Self.Instance = machines.InstanceOf(1, "copy") })
	if err := stopThird(); err != nil && !errors.Is(err, machines.ErrFenced) {
		t.Errorf("a stale instance ends with %v", err)
	}
	w.open(t, second, schema.CanSandbox).exchange(t, []byte("still here"))
	harness.Must(t, w.fleet.Await(t.Context(), func(all []schema.Machine) bool { return len(all) == 1 && all[0].Instance != third }))
}

// TestASilentSideIsGivenUp: the machine ends the process of a client that is gone, and
// the client the line of a machine that is gone.
func TestASilentSideIsGivenUp(t *testing.T) {
	testenv.Slow(t)
	w := newWorld(t, line.Timing{Beat: 100 * time.Millisecond, Silence: 3 * time.Second})
	ended := make(chan struct{}, 1)
	instance, _ := w.serve(t, 1, func(m *machines.Machine) {
		m.Start = func(want string, stream *os.File) (machines.Process, error) {
			p, err := echo(want, stream)
			wait := p.Wait
			p.Wait = func() schema.LineEnd {
				e := wait()
				ended <- struct{}{}
				return e
			}
			return p, err
		}
	})
	w.await(t, instance, nil)
	c := w.open(t, instance, schema.CanSandbox)
	_, err := c.conn.Write([]byte("a"))
	harness.Must(t, err)
	_, err = io.ReadFull(c.conn, make([]byte, 1))
	harness.Must(t, err)
	w.worker.Set(true, true, 0)
	if e := c.ends(t); e.Reason != schema.LineSilent {
		t.Errorf("the client's end: %+v", e)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the process still runs")
	}
}

// TestAnEarlierInstanceIsRefused: a client that has not heard of the later instance gets
// an answer, and no answer if its message is for an instance that this one does not know.
// The message is that of docs/machine.md.
func TestAnEarlierInstanceIsRefused(t *testing.T) {
	w := newWorld(t, line.DefaultTiming())
	instance, _ := w.serve(t, 5, nil)
	w.await(t, instance, nil)
	nc := w.nats.Admin(t).BulkConn() //nolint:forbidigo // a client by the book
	heard, err := nc.SubscribeSync("machine.m1.up.admin.*")
	harness.Must(t, err)
	for _, line := range []string{"6-later.unknown", "4-earlier.fenced"} {
		harness.Must(t, nc.Publish("machine.m1.down."+strings.Replace(line, ".", ".admin.", 1), append([]byte("d"), make([]byte, 24)...)))
	}
	m, err := heard.NextMsg(time.Minute)
	harness.Must(t, err)
	var e schema.LineEnd
	harness.Must(t, schema.Decode(m.Data[25:], &e))
	if m.Subject != "machine.m1.up.admin.fenced" || m.Data[0] != 'r' || e.Reason != schema.LineFenced {
		t.Errorf("%s: %q, %+v", m.Subject, m.Data, e)
	}
}
