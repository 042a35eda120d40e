package machine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/backends/machine"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// TestMain lets the test binary act as turngate on the machine, as a machine, and as a
// worker.
func TestMain(m *testing.M) {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	switch role {
	case "box":
		os.Exit(local.BoxMain(os.Args[2:]))
	case far.Command:
		os.Exit(far.Serve(os.Args[2:]))
	case "machine":
		os.Exit(told(serve(os.Args[2], os.Args[3], os.Args[4], os.Args[5])))
	case "work":
		os.Exit(told(work(os.Args[2], os.Args[3], os.Args[4])))
	}
	goleak.VerifyTestMain(m)
}

func told(err error) int {
	fmt.Println(err)
	return 1
}

// timing notices a dead side soon.
func timing() line.Timing {
	return line.Timing{Beat: 500 * time.Millisecond, Silence: 5 * time.Second}
}

func dial(url, creds, role, name string) (*broker.Broker, error) {
	return broker.Dial(context.Background(), broker.Config{URL: url, Creds: creds, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
}

// serve is a machine, until it is killed.
func serve(url, creds, name, state string) error {
	b, err := dial(url, creds, "machine", name)
	if err != nil {
		return err
	}
	m, err := machineOf(b, name, state, time.Now().UnixMilli(), timing())
	if err != nil {
		return err
	}
	return m.Serve(context.Background())
}

func machineOf(b *broker.Broker, name, state string, epoch int64, timing line.Timing) (*machines.Machine, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	digest, err := far.Digest(exe)
	return &machines.Machine{
		Broker: b, Timing: timing, Grace: time.Minute,
		Self: schema.Machine{Machine: name, Instance: machines.InstanceOf(epoch, "aa"), Epoch: epoch, Program: digest, Slots: 64},
		Start: func(_ string, stream *os.File) (machines.Process, error) {
			p, err := far.Start(exe, []string{state}, stream)
			if err != nil {
				return machines.Process{}, err
			}
			return machines.Process{Kill: p.Kill, Wait: func() schema.LineEnd {
				status, says := p.Wait()
				return schema.LineEnd{Status: status, Text: says}
			}}, nil
		},
	}, err
}

// work is a worker with one sandbox, until it is killed.
func work(url, creds, mark string) error {
	b, err := dial(url, creds, "worker", "w1")
	if err != nil {
		return err
	}
	fleet, err := machines.NewFleet(b, "w1", timing())
	if err != nil {
		return err
	}
	backend, err := newBackend(sandboxes.Machines{Fleet: fleet})
	if err != nil {
		return err
	}
	s := spec()
	s.Owner = mark
	return sandboxtest.Work(backend, s, mark)
}

func newBackend(m sandboxes.Machines) (sandboxes.Backend, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return machine.Kind().New(sandboxes.Host{Helper: exe, Machines: m})
}

// world is a server with machines, and a worker behind a proxy.
type world struct {
	nats   testenv.NATS
	worker *testenv.Proxy
	timing line.Timing
}

func newWorld(t *testing.T, timing line.Timing) *world {
	t.Helper()
	w := &world{nats: testenv.StartNATS(t), timing: timing}
	w.worker = testenv.NewProxy(t, hostOf(t, w.nats.URL()))
	return w
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	harness.Must(t, err)
	return u.Host
}

func (w *world) admit(t *testing.T, name string) (creds string) {
	t.Helper()
	harness.Must(t, w.nats.AddMachine(name, ""))
	harness.Must(t, w.nats.Reload())
	return w.nats.MachineCreds(name)
}

// backend is a worker's, for the machines of these names.
func (w *world) backend(t *testing.T, names ...string) sandboxes.Backend {
	t.Helper()
	backend, err := newBackend(sandboxes.Machines{Fleet: w.fleet(t), Names: names})
	harness.Must(t, err)
	return backend
}

// fleet is that of the worker.
func (w *world) fleet(t *testing.T) *machines.Fleet {
	t.Helper()
	b, err := dial(w.worker.URL(), w.nats.AdmitWorker(t, "w1"), "worker", "w1")
	harness.Must(t, err)
	t.Cleanup(b.Close)
	fleet, err := machines.NewFleet(b, "w1", w.timing)
	harness.Must(t, err)
	t.Cleanup(fleet.Close)
	return fleet
}

// machine runs a machine in this process, behind a proxy.
func (w *world) machine(t *testing.T, name string, change func(*machines.Machine)) (state string, proxy *testenv.Proxy) {
	t.Helper()
	state, proxy = t.TempDir(), testenv.NewProxy(t, hostOf(t, w.nats.URL()))
	b, err := dial(proxy.URL(), w.admit(t, name), "machine", name)
	harness.Must(t, err)
	t.Cleanup(b.Close)
	m, err := machineOf(b, name, state, 1, w.timing)
	harness.Must(t, err)
	if change != nil {
		change(m)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		harness.Must(t, <-done)
	})
	return state, proxy
}

func spec() sandboxes.Spec {
	return sandboxes.Spec{Owner: "machine", Rollout: "alpha-1", Attempt: 1, Ready: time.Minute}
}

func features() sandboxtest.Features {
	root := os.Geteuid() == 0
	return sandboxtest.Features{Shell: true, Isolation: true, Memory: root, Users: root}
}

// TestContract runs while the connections of both sides are cut again and again.
func TestContract(t *testing.T) {
	testenv.Slow(t)
	sandboxtest.Run(t, sandboxtest.Fixture{
		New: func(t *testing.T) sandboxes.Backend {
			w := newWorld(t, line.DefaultTiming())
			_, proxy := w.machine(t, "m1", nil)
			b := w.backend(t, "m1")
			harness.Must(t, b.Check(t.Context()))
			done, stop := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				tick := time.NewTicker(5 * time.Second)
				defer tick.Stop()
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					case <-tick.C:
						[]*testenv.Proxy{w.worker, proxy}[n%2].Cut()
					}
				}
			}()
			t.Cleanup(func() { close(stop); <-done })
			return b
		},
		Features: features(),
	})
}

// TestSettingsAreRefusedByName: no machine is asked.
func TestSettingsAreRefusedByName(t *testing.T) {
	b, err := newBackend(sandboxes.Machines{})
	harness.Must(t, err)
	sandboxtest.RefusesByName(t, b)
	if _, err := b.Create(t.Context(), spec()); !errors.Is(err, sandboxes.ErrNotAsked) {
		t.Errorf("without machines: %v", err)
	}
	if err := b.Check(t.Context()); !errors.Is(err, sandboxes.ErrNotAsked) {
		t.Errorf("the check without machines: %v", err)
	}
	if _, err := newBackend(sandboxes.Machines{Names: []string{"a.b"}}); err == nil || !strings.Contains(err.Error(), `"a.b"`) {
		t.Errorf("a bad name: %v", err)
	}
}

// TestAMachineThatDoesNotFitIsNamed: with its reason. Another one is taken, if there is one.
func TestAMachineThatDoesNotFitIsNamed(t *testing.T) {
	testenv.Slow(t)
	w := newWorld(t, timing())
	w.machine(t, "bare", func(m *machines.Machine) {
		m.Self.Missing = map[string]string{schema.CanSandbox: "no user namespaces"}
	})
	w.machine(t, "other", func(m *machines.Machine) { m.Self.Program, m.Self.Version = "x", "v9" })
	err := w.backend(t, "bare", "other").Check(t.Context())
	for _, want := range []string{"machine bare: no user namespaces", "machine other: it has another turngate (version v9"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q: %v", want, err)
		}
	}
	var no *sandboxes.UnsupportedError
	if _, err := w.backend(t, "bare").Create(t.Context(), spec()); !errors.As(err, &no) || no.Field != "sandbox.backend" || no.Value != "machine" {
		t.Errorf("the only machine: %v", err)
	}
	host := sandboxes.Host{Machines: sandboxes.Machines{Fleet: w.fleet(t), Names: []string{"other"}}}
	if _, err := machine.Workspace(t.Context(), host, spec()); err == nil || !strings.Contains(err.Error(), "machine other: it has the protocol 0 of lines, want 1") {
		t.Errorf("a workspace of another protocol: %v", err)
	}
	w.machine(t, "good", nil)
	b := w.backend(t)
	harness.Must(t, b.Check(t.Context())) // the others stop no worker that takes all machines
	if got := sandboxtest.Output(t, sandboxtest.Create(t, b, spec()), "echo here"); got != "here\n" {
		t.Errorf("got %q", got)
	}
}

// nobody is a fleet without machines.
type nobody struct{ sandboxes.Fleet }

func (nobody) Await(ctx context.Context, ok func([]schema.Machine) bool) error {
	if ok(nil) {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestAMissingMachineIsNamedSoon: long before the attempt fails, with the remedy.
func TestAMissingMachineIsNamedSoon(t *testing.T) {
	for names, want := range map[string]string{"": "no machine was there for 5s; start one: turngate machine serve", "m1": "the machine m1 was offline for 5s; start it: turngate machine serve"} {
		synctest.Test(t, func(t *testing.T) {
			m := sandboxes.Machines{Fleet: nobody{}}
			if names != "" {
				m.Names = []string{names}
			}
			b, err := newBackend(m)
			harness.Must(t, err)
			var log []string
			s := spec()
			s.Log = func(line string) { log = append(log, line) }
			if _, err := b.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "turngate machine serve") {
				t.Errorf("the attempt: %v", err)
			}
			if len(log) != 1 || log[0] != want {
				t.Errorf("got %q, want %q", log, want)
			}
		})
	}
}

// TestFilesTravelOnce: the folder of an agent is on the machine after the first sandbox.
func TestFilesTravelOnce(t *testing.T) {
	w := newWorld(t, line.DefaultTiming())
	state, _ := w.machine(t, "m1", nil)
	dir := t.TempDir()
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "bin", "empty"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "bin", "hello"), []byte("#!/bin/sh\necho hello\n"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "large"), harness.Noise(3<<20), 0o644))
	b := w.backend(t)
	for i, want := range []int{1, 0} {
		var log []string
		s := spec()
		s.Attempt = i + 1
		s.Mounts = []sandboxes.Mount{{Host: dir, Guest: "/opt/agent"}}
		s.Log = func(line string) { log = append(log, line) }
		sb := sandboxtest.Create(t, b, s)
		if got := sandboxtest.Output(t, sb, `/opt/agent/bin/hello; touch /opt/agent/x 2>/dev/null || echo read-only`); got != "hello\nread-only\n" {
			t.Errorf("sandbox %d: %q", i, got)
		}
		harness.Must(t, sb.Close(t.Context()))
		if len(log) != want {
			t.Errorf("sandbox %d: %d things travelled, want %d: %q", i, len(log), want, log)
		}
	}
	trees, err := filepath.Glob(filepath.Join(state, "trees", "*"))
	if err != nil || len(trees) != 1 {
		t.Errorf("the trees %q, %v", trees, err)
	}
}

// TestACutCostsNothing: a command runs on, once, while no byte passes.
func TestACutCostsNothing(t *testing.T) {
	w := newWorld(t, line.DefaultTiming())
	_, proxy := w.machine(t, "m1", nil)
	sb := sandboxtest.Create(t, w.backend(t), spec())
	out, in, err := os.Pipe()
	harness.Must(t, err)
	defer out.Close()
	keys, typed, err := os.Pipe()
	harness.Must(t, err)
	defer keys.Close()
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", `echo run >>/tmp/runs; echo up; read x; cat /tmp/runs; echo "$x"`}, Stdin: keys, Stdout: in})
	harness.Must(t, err)
	lines := bufio.NewReader(out)
	for _, want := range []string{"up\n", "run\n", "go on\n"} {
		if got, err := lines.ReadString('\n'); got != want || err != nil {
			t.Fatalf("got %q, want %q: %v", got, want, err)
		}
		if want == "up\n" {
			for _, p := range []*testenv.Proxy{proxy, w.worker} {
				p.Set(true, true, 0)
				p.Cut()
			}
			_, err := typed.WriteString("go on\n")
			harness.Must(t, err)
			typed.Close()
			proxy.Heal()
			w.worker.Heal()
		}
	}
	in.Close()
	if exit, err := p.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("got %+v, %v", exit, err)
	}
}
