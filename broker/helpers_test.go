package broker_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// bench is one embedded server with a connection for each role.
type bench struct {
	config  broker.EmbeddedConfig
	server  *broker.Embedded
	worker  *broker.WorkerSide
	leave   func() // ends the worker
	trainer *broker.TrainerSide
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{config: broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "state"), Port: testenv.FreePort(t), Trainers: []string{"alpha", "beta"}, Relaxed: true, Log: zerolog.Nop()}}
	srv, err := broker.StartEmbedded(b.config)
	must(t, err)
	b.server = srv
	t.Cleanup(func() { b.server.Shutdown() })
	wb := b.dial(t, srv.WorkerCreds(), broker.InboxFor("worker", "w1"))
	must(t, wb.Setup(t.Context(), broker.StreamsConfig{Timing: quick()}))
	b.worker, b.leave = b.stoppable(t, "w1")
	b.trainer = b.trainerSide(t, "alpha")
	return b
}

// restart starts the server again where it was.
func (b *bench) restart(t testing.TB) {
	t.Helper()
	b.server = testenv.Serve(t, b.config)
}

// quick are the protocol's durations, twenty times as fast.
func quick() broker.Timing { return broker.DefaultTiming().Faster(20) }

// workerSide is one worker instance, alive until the test ends.
func (b *bench) workerSide(t testing.TB, wid string, change ...func(*broker.WorkerConfig)) *broker.WorkerSide {
	t.Helper()
	side, _ := b.stoppable(t, wid, change...)
	return side
}

// stoppable is a worker instance that leaves when stop is called.
func (b *bench) stoppable(t testing.TB, wid string, change ...func(*broker.WorkerConfig)) (side *broker.WorkerSide, stop func()) {
	t.Helper()
	c := broker.WorkerConfig{Worker: wid, Instance: "i1", Slots: 2, Timing: quick()}
	for _, f := range change {
		f(&c)
	}
	side, err := b.dial(t, b.server.WorkerCreds(), broker.InboxFor("worker", wid+"-"+c.Instance)).WorkerSide(c)
	must(t, err)
	return side, runSide(t, side)
}

// runSide keeps a worker alive until the test ends, or stop is called.
func runSide(t testing.TB, side *broker.WorkerSide) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = side.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done; side.Close() })
	t.Cleanup(stop)
	return stop
}

func (b *bench) dial(t testing.TB, creds, inbox string) *broker.Broker {
	t.Helper()
	return dialAt(t, b.server.URL(), creds, inbox, zerolog.Nop())
}

func dialAt(t testing.TB, url, creds, inbox string, log zerolog.Logger) *broker.Broker {
	t.Helper()
	br, err := broker.Dial(t.Context(), broker.Config{URL: url, Creds: creds, Name: "test", Inbox: inbox, Log: log})
	must(t, err)
	t.Cleanup(br.Close)
	return br
}

func (b *bench) trainerSide(t testing.TB, tid string) *broker.TrainerSide {
	t.Helper()
	side, err := b.dial(t, b.server.TrainerCreds(tid), broker.InboxFor("trainer", tid)).TrainerSide(tid)
	must(t, err)
	return side
}

func request(id schema.ID) schema.Request {
	return schema.Request{
		ID: id, Trainer: id.Trainer(), Task: schema.Task{Name: "t", Instruction: "do it"},
		Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "dummy"},
	}
}

func (b *bench) submit(t testing.TB, r schema.Request) {
	t.Helper()
	_, err := b.trainer.Submit(t.Context(), 2, []schema.Request{r})
	must(t, err)
}

func (b *bench) take(t testing.TB) *broker.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	j, err := b.worker.Take(ctx)
	must(t, err)
	return j
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	eventuallyWithin(t, 10*time.Second, what, ok)
}

func eventuallyWithin(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("%s did not come about", what)
		case <-tick.C:
		}
	}
}

func rawReply(m *nats.Msg) { _ = m.Respond([]byte("ok")) }
