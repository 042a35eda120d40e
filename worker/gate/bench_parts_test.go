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

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/worker/gate"
)

// part is one server of the benchmark of the gate.
type part string

const (
	partNATS      part = "nats"
	partEcho      part = "echo"      // a bare HTTP server
	partResponder part = "responder" // to bare NATS requests
	partTrainer   part = "trainer"
	partGate      part = "gate"
)

// place is where a part is to be found, or where NATS is and its credentials.
type place struct{ URL, Key, Worker, Trainer string }

func placeOf(srv testenv.NATS) place {
	return place{URL: srv.URL(), Worker: srv.WorkerCreds(), Trainer: srv.TrainerCreds("alpha")}
}

// serve starts a part.
func (p part) serve(at place) (place, func(), error) {
	switch p {
	case partNATS:
		return serveNATS()
	case partEcho:
		srv := httptest.NewServer(echo(benchAnswer()))
		return place{URL: srv.URL}, srv.Close, nil
	case partResponder:
		return at.serveResponder()
	case partTrainer:
		return at.serveTrainer()
	case partGate:
		return at.serveGate()
	default:
		return place{}, nil, fmt.Errorf("%q is no part", p)
	}
}

func serveNATS() (at place, stop func(), err error) {
	dir, err := os.MkdirTemp("", "turngate-bench-")
	if err != nil {
		return at, nil, err
	}
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: dir, Trainers: []string{"alpha"}, Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		return at, nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		srv.Shutdown()
		_ = os.RemoveAll(dir)
	}
	at = placeOf(testenv.NATS{Embedded: srv})
	setup, err := at.dial(at.Worker, "worker", "setup")
	if err == nil {
		err = setup.Setup(context.Background(), broker.StreamsConfig{})
		setup.Close()
	}
	return at, stop, err
}

// bareSubject is what bare NATS requests are about.
const bareSubject = "bare.echo"

func (at place) connect(inbox string) (*nats.Conn, error) {
	key, err := nats.NkeyOptionFromSeed(at.Worker)
	if err != nil {
		return nil, err
	}
	return nats.Connect(at.URL, key, nats.CustomInboxPrefix(inbox))
}

func (at place) dial(creds, role, name string) (*broker.Broker, error) {
	return broker.Dial(context.Background(), broker.Config{URL: at.URL, Creds: creds, Name: name, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
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
		return place{}, nil, err
	}
	answer := benchAnswer()
	_, err = nc.Subscribe(bareSubject, func(m *nats.Msg) { _ = m.Respond(answer) })
	return place{}, nc.Close, errors.Join(err, nc.Flush())
}

func (at place) serveTrainer() (place, func(), error) {
	b, err := at.dial(at.Trainer, "trainer", "alpha")
	if err != nil {
		return place{}, nil, err
	}
	t, err := trainer.New(trainer.Config{Broker: b, Name: "alpha", Log: zerolog.Nop()})
	if err != nil {
		b.Close()
		return place{}, nil, err
	}
	message := json.RawMessage(`{"role":"assistant","content":"` + string(benchAnswer()) + `"}`)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = t.Serve(ctx, func(context.Context, *schema.Call) (*schema.Reply, error) {
			return &schema.Reply{Message: message, FinishReason: "stop"}, nil
		})
	}()
	return place{}, func() {
		cancel()
		<-served
		t.Close()
		b.Close()
	}, nil
}

func (at place) serveGate() (place, func(), error) {
	b, err := at.dial(at.Worker, "worker", "w1")
	if err != nil {
		return place{}, nil, err
	}
	side, err := b.WorkerSide(broker.WorkerConfig{Worker: "w1", Instance: "i1"})
	if err != nil {
		b.Close()
		return place{}, nil, err
	}
	r := schema.Request{ID: "alpha-1", Trainer: "alpha", Gate: schema.GateOptions{MaxCalls: 1 << 30}}.WithDefaults()
	s := gate.Open(context.Background(), gate.Config{
		Rollout: r.ID, Attempt: 1, ModelName: "policy", Options: r.Gate, Model: gateModel{side.Caller(r)}, Dialects: gate.Dialects(), Log: zerolog.Nop(),
	})
	web := httptest.NewServer(s)
	return place{URL: web.URL, Key: s.Key()}, func() {
		web.Close()
		s.Close()
		side.Close()
		b.Close()
	}, nil
}

// gateModel is the broker's caller as the gate's model.
type gateModel struct{ *broker.Caller }

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

// partVar names the part that a process of this binary is to be, and placeVar
// where NATS is.
const (
	partVar  = "TURNGATE_BENCH_PART"
	placeVar = "TURNGATE_BENCH_PLACE"
)

// startApart starts a part in a process of its own, until the test ends.
func startApart(t testing.TB, p part, at place) (found place) {
	t.Helper()
	where, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), partVar+"="+string(p), placeVar+"="+string(where))
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
		_ = in.Close() // it ends with its input
		if err := c.Wait(); err != nil {
			t.Errorf("%s ended: %v", p, err)
		}
	})
	if err := json.NewDecoder(out).Decode(&found); err != nil {
		t.Fatalf("start %s: %v", p, err)
	}
	return found
}

// serveApart is the other end of startApart.
func serveApart(p part) error {
	var at place
	if err := json.Unmarshal([]byte(os.Getenv(placeVar)), &at); err != nil {
		return err
	}
	found, stop, err := p.serve(at)
	if stop != nil {
		defer stop()
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	return err
}
