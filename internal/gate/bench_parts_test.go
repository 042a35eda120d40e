package gate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// part is one server of the gate's benchmark.
type part string

const (
	partNATS      part = "nats"
	partEcho      part = "echo"      // a bare HTTP server
	partResponder part = "responder" // for bare NATS requests
	partTrainer   part = "trainer"
	partGate      part = "gate"
)

// place has the addresses of the parts, and the credentials for NATS.
type place struct{ NATS, Admin, Worker, Trainer, Echo, Gate, Key string }

func placeOf(srv testenv.NATS) place {
	return place{NATS: srv.URL(), Admin: srv.AdminCreds(), Worker: srv.WorkerCreds("w1"), Trainer: srv.TrainerCreds("alpha")}
}

// layout assigns parts to processes.
type layout struct {
	name string
	// processes lists the parts of each process in the order of their start;
	// nil if all of them are in this process.
	processes [][]part
}

func layouts() (here, hosted, apart layout) {
	return layout{name: "here"},
		layout{name: "hosted", processes: [][]part{{partNATS, partResponder, partTrainer}, {partEcho}, {partGate}}},
		layout{name: "apart", processes: [][]part{{partNATS}, {partResponder}, {partTrainer}, {partEcho}, {partGate}}}
}

// start starts every part, until the test ends.
func (l layout) start(t testing.TB) (at place) {
	t.Helper()
	if len(l.processes) == 0 {
		for _, p := range []part{partNATS, partResponder, partTrainer, partEcho, partGate} {
			at = startHere(t, p, at)
		}
	}
	for _, parts := range l.processes {
		at = startApart(t, parts, at)
	}
	return at
}

// serve starts a part and returns at with its address.
func (p part) serve(at place) (found place, stop func(), err error) {
	switch p {
	case partNATS:
		return at.serveNATS()
	case partEcho:
		srv := httptest.NewServer(echo(benchAnswer()))
		at.Echo = srv.URL
		return at, srv.Close, nil
	case partResponder:
		return at.serveResponder()
	case partTrainer:
		return at.serveTrainer()
	case partGate:
		return at.serveGate()
	default:
		return at, nil, fmt.Errorf("%q is no part", p)
	}
}

func (at place) serveNATS() (_ place, stop func(), err error) {
	dir, err := os.MkdirTemp("", "turngate-bench-")
	if err != nil {
		return at, nil, err
	}
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: dir, Trainers: []string{"alpha"}, Workers: []string{"w1"}, Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		return at, nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		srv.Shutdown()
		_ = os.RemoveAll(dir)
	}
	at = placeOf(testenv.NATS{Embedded: srv})
	setup, err := at.dial(at.Worker, "worker", "w1")
	if err == nil {
		err = setup.Streams.Setup(context.Background(), broker.StreamsConfig{})
		if err == nil { // no worker answers here later
			_, err = setup.Trainers.Open(context.Background(), "alpha")
		}
		setup.Close()
	}
	return at, stop, err
}

// bareSubject is the subject of bare NATS requests.
const bareSubject = "bare.echo"

func (at place) connect(inbox string) (*nats.Conn, error) {
	key, err := nats.NkeyOptionFromSeed(at.Admin)
	if err != nil {
		return nil, err
	}
	return nats.Connect(at.NATS, key, nats.CustomInboxPrefix(inbox))
}

// grantCalls gives the calls of a shard to each process of a trainer that asks, as
// workers do.
func (at place) grantCalls() (*nats.Conn, error) {
	key, err := nats.NkeyOptionFromSeed(at.Worker)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(at.NATS, key, nats.CustomInboxPrefix(broker.InboxFor("worker", "w1")))
	if err != nil {
		return nil, err
	}
	_, err = nc.Subscribe(subjects.AttachFilter, func(m *nats.Msg) {
		var asked schema.Attach
		if schema.Decode(m.Data, &asked) != nil {
			return
		}
		if granted, err := schema.Encode(&schema.Attached{V: schema.Version, Process: asked.Process}); err == nil {
			_ = m.Respond(granted)
		}
	})
	return nc, errors.Join(err, nc.Flush())
}

func (at place) dial(creds, role, name string) (*broker.Broker, error) {
	return broker.Dial(context.Background(), broker.Config{URL: at.NATS, Creds: creds, Name: name, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
}

func echo(answer []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(answer)
	})
}

func (at place) serveResponder() (place, func(), error) {
	nc, err := at.connect("_INBOX.responder")
	if err != nil {
		return at, nil, err
	}
	answer := benchAnswer()
	_, err = nc.Subscribe(bareSubject, func(m *nats.Msg) { _ = m.Respond(answer) })
	return at, nc.Close, errors.Join(err, nc.Flush())
}

func (at place) serveTrainer() (place, func(), error) {
	grants, err := at.grantCalls()
	if err != nil {
		return at, nil, err
	}
	b, err := at.dial(at.Trainer, "trainer", "alpha")
	if err != nil {
		grants.Close()
		return at, nil, err
	}
	t, err := trainer.Dial(context.Background(), trainer.Config{Broker: b, Name: "alpha", AnswerAll: true, Log: zerolog.Nop()})
	if err != nil {
		grants.Close()
		b.Close()
		return at, nil, err
	}
	message := json.RawMessage(`{"role":"assistant","content":"` + string(benchAnswer()) + `"}`)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = t.Serve(ctx, func(context.Context, *trainer.Call) (*schema.Reply, error) {
			return &schema.Reply{Message: message, FinishReason: "stop"}, nil
		})
	}()
	return at, func() {
		cancel()
		<-served
		t.Close()
		b.Close()
		grants.Close()
	}, nil
}

func (at place) serveGate() (place, func(), error) {
	b, err := at.dial(at.Worker, "worker", "w1")
	if err != nil {
		return at, nil, err
	}
	calls, err := modelcall.NewClient(b, "w1", "i1")
	if err != nil {
		b.Close()
		return at, nil, err
	}
	r := schema.Request{ID: "alpha-1", Trainer: "alpha", Gate: schema.GateOptions{MaxCalls: 1 << 30, MaxRepeats: 1 << 30}}.WithDefaults()
	s := gate.Open(context.Background(), gate.Config{
		Rollout: r.ID, Attempt: 1, ModelName: "policy", Options: r.Gate, Model: gateModel{calls.Caller(r, nil)}, Dialects: gate.Dialects(), Log: zerolog.Nop(),
	})
	web := httptest.NewServer(s)
	at.Gate, at.Key = web.URL, s.Key()
	return at, func() {
		web.Close()
		s.Close()
		calls.Close()
		b.Close()
	}, nil
}

// gateModel is the broker's caller as the gate's model.
type gateModel struct{ *modelcall.Caller }

// startHere starts a part in this process, until the test ends.
func startHere(t testing.TB, p part, at place) place {
	t.Helper()
	found, stop, err := p.serve(at)
	if stop != nil {
		t.Cleanup(stop)
	}
	if err != nil {
		t.Fatalf("start %s: %v", p, err)
	}
	return found
}

// partsVar is the environment variable with the parts of a process.
const partsVar = "TURNGATE_BENCH_PARTS"

// apart is the value of partsVar: the parts and their addresses.
type apart struct {
	Parts []part
	At    place
}

// startApart starts parts in a process of their own, until the test ends.
func startApart(t testing.TB, parts []part, at place) (found place) {
	t.Helper()
	text, err := json.Marshal(apart{parts, at})
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), partsVar+"="+string(text))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // the process ends with its input
		if err := c.Wait(); err != nil {
			t.Errorf("%s ended: %v", parts, err)
		}
	})
	if err := json.NewDecoder(out).Decode(&found); err != nil {
		t.Fatalf("start %s: %v", parts, err)
	}
	return found
}

// serveApart runs in the process that startApart starts.
func serveApart(text string) error {
	var a apart
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	at := a.At
	for _, p := range a.Parts {
		found, stop, err := p.serve(at)
		if stop != nil {
			defer stop()
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", p, err)
		}
		at = found
	}
	if err := json.NewEncoder(os.Stdout).Encode(at); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
