package testenv

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// Pool is an embedded server with worker w1 and trainer alpha. Its durations are Quick's.
type Pool struct {
	Config  broker.EmbeddedConfig
	Server  *broker.Embedded
	Broker  *broker.Broker // of Worker
	Worker  *queue.Worker
	Leave   func() // ends the worker
	Trainer *queue.Trainer
}

// StartPool starts a pool with credentials for the trainers alpha and beta. It stops
// when the test ends.
func StartPool(t testing.TB) *Pool {
	t.Helper()
	p := &Pool{Config: broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "state"), Port: FreePort(t), Trainers: []string{"alpha", "beta"}, Workers: workers(), Relaxed: true, Log: zerolog.Nop()}}
	srv, err := broker.StartEmbedded(p.Config)
	harness.Must(t, err)
	p.Server = srv
	t.Cleanup(func() { p.Server.Shutdown() })
	p.Broker = p.Dial(t, AdmitWorker(t, srv, "w1"), broker.InboxFor("worker", "w1"))
	harness.Must(t, p.Broker.Streams.Setup(t.Context(), broker.StreamsConfig{Timing: Quick()}))
	p.Worker, p.Leave = startWorker(t, p.Broker, "w1")
	p.Trainer = p.NewTrainer(t, "alpha")
	return p
}

// Quick returns the protocol's durations divided by 20.
func Quick() broker.Timing { return broker.DefaultTiming().Faster(20) }

// Restart starts the server again on its old state.
func (p *Pool) Restart(t testing.TB) {
	t.Helper()
	p.Server = Serve(t, p.Config)
}

// NewWorker starts a worker instance that leaves when the test ends.
func (p *Pool) NewWorker(t testing.TB, wid string, change ...func(*queue.WorkerConfig)) *queue.Worker {
	t.Helper()
	w, _ := p.StartWorker(t, wid, change...)
	return w
}

// StartWorker starts a worker instance that leaves when the test ends or leave is
// called.
func (p *Pool) StartWorker(t testing.TB, wid string, change ...func(*queue.WorkerConfig)) (w *queue.Worker, leave func()) {
	t.Helper()
	return startWorker(t, p.Dial(t, AdmitWorker(t, p.Server, wid), broker.InboxFor("worker", wid)), wid, change...)
}

func startWorker(t testing.TB, b *broker.Broker, wid string, change ...func(*queue.WorkerConfig)) (w *queue.Worker, leave func()) {
	t.Helper()
	c := queue.WorkerConfig{Worker: wid, Instance: "i1", Slots: 2, Timing: Quick()}
	for _, f := range change {
		f(&c)
	}
	w, err := queue.NewWorker(b, c)
	harness.Must(t, err)
	return w, RunWorker(t, w)
}

// RunWorker keeps a worker alive until the test ends or stop is called.
func RunWorker(t testing.TB, w *queue.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done; w.Close() })
	t.Cleanup(stop)
	return stop
}

// Dial connects to the pool's server with a credential and an inbox prefix.
func (p *Pool) Dial(t testing.TB, creds, inbox string) *broker.Broker {
	t.Helper()
	return DialAt(t, p.Server.URL(), creds, inbox, zerolog.Nop())
}

// DialAt connects to a server with a credential and an inbox prefix.
func DialAt(t testing.TB, url, creds, inbox string, log zerolog.Logger) *broker.Broker {
	t.Helper()
	b, err := broker.Dial(t.Context(), broker.Config{URL: url, Creds: creds, Name: "test", Inbox: inbox, Log: log})
	harness.Must(t, err)
	t.Cleanup(b.Close)
	return b
}

// NewTrainer connects a trainer and waits for its streams.
func (p *Pool) NewTrainer(t testing.TB, tid string) *queue.Trainer {
	t.Helper()
	trainer, err := queue.NewTrainer(p.Dial(t, p.Server.TrainerCreds(tid), broker.InboxFor("trainer", tid)), tid)
	harness.Must(t, err)
	wait, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	harness.Must(t, trainer.AwaitSetup(wait))
	return trainer
}

// Submit puts a request of trainer alpha on the queue.
func (p *Pool) Submit(t testing.TB, r schema.Request) {
	t.Helper()
	_, err := p.Trainer.Submit(t.Context(), 2, []schema.Request{r})
	harness.Must(t, err)
}

// Take claims the next request with worker w1.
func (p *Pool) Take(t testing.TB) *queue.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	j, err := p.Worker.Take(ctx)
	harness.Must(t, err)
	return j
}
