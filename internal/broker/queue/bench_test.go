package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// natsProcess starts a server in a process of its own, so that measurements of
// this process cover the worker alone.
func natsProcess(b *testing.B, flags ...string) (url, creds string) {
	b.Helper()
	dir := b.TempDir()
	cmd := exec.Command(testenv.Binary(b), append([]string{"nats", "--state", dir, "--port", "0", "--trainers", "alpha"}, flags...)...)
	out, err := cmd.StdoutPipe()
	harness.Must(b, err)
	harness.Must(b, cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	said := make([]byte, 4096)
	n, err := out.Read(said)
	harness.Must(b, err)
	_, rest, _ := strings.Cut(string(said[:n]), "nats://")
	return "nats://" + strings.Fields(rest)[0], filepath.Join(dir, "creds")
}

func connect(b *testing.B, url, creds, inbox string) *broker.Broker {
	b.Helper()
	br, err := broker.Dial(b.Context(), broker.Config{URL: url, Creds: creds, Name: "bench", Inbox: inbox, Log: zerolog.Nop()})
	harness.Must(b, err)
	b.Cleanup(br.Close)
	return br
}

// benchWorker is a worker with DefaultTiming.
func benchWorker(b *testing.B, br *broker.Broker, wid string, slots int) *queue.Worker {
	b.Helper()
	side, err := queue.NewWorker(br, queue.WorkerConfig{Worker: wid, Instance: "i1", Slots: slots})
	harness.Must(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = side.Run(ctx)
	}()
	b.Cleanup(func() { cancel(); <-ended; side.Close() })
	return side
}

// setUp makes the shared streams and the streams of trainer alpha.
func setUp(b *testing.B, br *broker.Broker) {
	b.Helper()
	harness.Must(b, br.Streams.Setup(b.Context(), broker.StreamsConfig{}))
	_, err := br.Trainers.Open(b.Context(), "alpha")
	harness.Must(b, err)
}

// fill puts n requests on the queue.
func fill(b *testing.B, url, creds, prefix string, n int) {
	b.Helper()
	side, err := queue.NewTrainer(connect(b, url, filepath.Join(creds, "trainer-alpha.nk"), broker.InboxFor("trainer", "alpha")), "alpha")
	harness.Must(b, err)
	for at := 0; at < n; at += 500 {
		group := make([]schema.Request, 0, 500)
		for i := at; i < min(at+500, n); i++ {
			group = append(group, harness.Request(schema.ID(fmt.Sprintf("alpha-%s%d", prefix, i))))
		}
		_, err := side.Submit(b.Context(), 2, group)
		harness.Must(b, err)
	}
}

// BenchmarkEmptyRollout claims, commits and acknowledges empty rollouts, 32 at a
// time. In turns with it, on the same server, it does the same number of raw
// JetStream operations (a pull, a read through the leader, four writes of which
// three are conditional, a confirmed ack). of_raw is the rate of the rollouts
// divided by the rate of the raw operations.
func BenchmarkEmptyRollout(b *testing.B) {
	for _, durability := range []string{"sync", "relaxed"} {
		b.Run(durability, func(b *testing.B) {
			var flags []string
			if durability == "relaxed" {
				flags = []string{"--relaxed-sync"}
			}
			url, creds := natsProcess(b, flags...)
			br := connect(b, url, filepath.Join(creds, "admin.nk"), broker.InboxFor("worker", "w1"))
			setUp(b, br)
			side := benchWorker(b, br, "w1", 64)
			raw := newRaw(b, url, creds)
			const rounds = 4
			each := max(b.N/rounds, 64)
			var ours, theirs time.Duration
			b.ResetTimer()
			for round := range rounds {
				b.StopTimer()
				fill(b, url, creds, fmt.Sprintf("%d-", round), each)
				raw.fill(b, each)
				b.StartTimer()
				start := time.Now()
				parallel(b, 32, each, func() {
					j, err := side.Take(b.Context())
					harness.Must(b, err)
					harness.Must(b, j.Done(b.Context(), outcome(j)))
				})
				ours += time.Since(start)
				b.StopTimer()
				start = time.Now()
				parallel(b, 32, each, func() { raw.one(b) })
				theirs += time.Since(start)
				b.StartTimer()
			}
			b.StopTimer()
			n := float64(rounds * each)
			b.ReportMetric(n/ours.Seconds(), "rollouts/s")
			b.ReportMetric(n/theirs.Seconds(), "raw/s")
			b.ReportMetric(theirs.Seconds()/ours.Seconds(), "of_raw")
			b.ReportMetric(fsyncs(b), "fsync/s") // of this disk, one after the other
		})
	}
}

// fsyncs returns the number of small synced writes per second of this disk.
func fsyncs(b *testing.B) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "fsync"))
	harness.Must(b, err)
	defer f.Close()
	const n = 300
	start := time.Now()
	for range n {
		_, err := f.Write(make([]byte, 512))
		harness.Must(b, err)
		harness.Must(b, f.Sync())
	}
	return n / time.Since(start).Seconds()
}

func parallel(b *testing.B, width, n int, do func()) {
	b.Helper()
	var all sync.WaitGroup
	var next atomic.Int64
	for range width {
		all.Go(func() {
			for next.Add(1) <= int64(n) {
				do()
			}
		})
	}
	all.Wait()
}

// raw does the JetStream operations of a rollout without the protocol.
type raw struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	queue jetstream.Consumer
	kept  jetstream.Stream
	n     atomic.Int64
}

func newRaw(b *testing.B, url, creds string) *raw {
	b.Helper()
	key, err := nats.NkeyOptionFromSeed(filepath.Join(creds, "admin.nk"))
	harness.Must(b, err)
	nc, err := nats.Connect(url, key)
	harness.Must(b, err)
	b.Cleanup(nc.Close)
	r := &raw{nc: nc}
	r.js, err = jetstream.New(nc)
	harness.Must(b, err)
	_, err = r.js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "RAWQ", Subjects: []string{"rawq"}, Retention: jetstream.WorkQueuePolicy, AllowAtomicPublish: true})
	harness.Must(b, err)
	r.queue, err = r.js.CreateConsumer(b.Context(), "RAWQ", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 100_000, MaxWaiting: 8192})
	harness.Must(b, err)
	r.kept, err = r.js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "RAWS", Subjects: []string{"raws.*.*"}, MaxMsgsPerSubject: 1, AllowAtomicPublish: true})
	harness.Must(b, err)
	return r
}

func (r *raw) fill(b *testing.B, n int) {
	b.Helper()
	for range n {
		_, err := r.js.PublishAsync("rawq", make([]byte, 150))
		harness.Must(b, err)
	}
	<-r.js.PublishAsyncComplete()
}

func (r *raw) one(b *testing.B) {
	n := r.n.Add(1)
	batch, err := r.queue.Fetch(1)
	harness.Must(b, err)
	m := <-batch.Messages()
	if m == nil {
		b.Error("no message")
		return
	}
	state := fmt.Sprintf("raws.%d.state", n)
	if _, err := r.kept.GetLastMsgForSubject(b.Context(), state); err == nil {
		b.Error("a state is there")
	}
	harness.Must(b, r.nc.Publish(fmt.Sprintf("raws.%d.request", n), make([]byte, 150)))
	ack, err := r.js.Publish(b.Context(), state, make([]byte, 200), jetstream.WithExpectLastSequencePerSubject(0))
	harness.Must(b, err)
	_, err = r.js.Publish(b.Context(), fmt.Sprintf("raws.%d.result", n), make([]byte, 250), jetstream.WithExpectLastSequenceForSubject(ack.Sequence, state))
	harness.Must(b, err)
	_, err = r.js.Publish(b.Context(), state, make([]byte, 200), jetstream.WithExpectLastSequencePerSubject(ack.Sequence))
	harness.Must(b, err)
	harness.Must(b, m.DoubleAck(b.Context()))
}

// BenchmarkRunningRollouts keeps 10,000 running rollouts on one worker for one full
// round of progress messages (20 s) and measures the CPU time and memory of this
// process. The server is another process.
func BenchmarkRunningRollouts(b *testing.B) {
	if os.Getenv("BENCH_LONG") == "" {
		b.Skip("SKIPPED: it takes half a minute; BENCH_LONG=1 runs it")
	}
	const rollouts = 10_000
	url, creds := natsProcess(b, "--relaxed-sync")
	br := connect(b, url, filepath.Join(creds, "admin.nk"), broker.InboxFor("worker", "w1"))
	setUp(b, br)
	side := benchWorker(b, br, "w1", rollouts)
	fill(b, url, creds, "h", rollouts)
	before := heap()
	jobs := make(chan *queue.Job, rollouts)
	parallel(b, 64, rollouts, func() {
		j, err := side.Take(b.Context())
		harness.Must(b, err)
		jobs <- j
	})
	perJob := float64(heap()-before) / rollouts
	start, used := time.Now(), cpu(b)
	<-time.After(22 * time.Second)
	share := (cpu(b) - used).Seconds() / time.Since(start).Seconds()
	b.ReportMetric(perJob, "B/rollout")
	b.ReportMetric(share*100, "%core")
	close(jobs)
	parallel(b, 64, rollouts, func() {
		j := <-jobs
		harness.Must(b, j.Done(b.Context(), outcome(j)))
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	harness.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkManyWorkers has 100,000 requests queued and 1,000 workers, each of
// which claims one, works for four to six seconds and commits it, and measures
// how long a claim takes.
func BenchmarkManyWorkers(b *testing.B) {
	if os.Getenv("BENCH_LONG") == "" {
		b.Skip("SKIPPED: it takes half a minute; BENCH_LONG=1 runs it")
	}
	const workers, requests = 1000, 100_000
	for _, durability := range []string{"sync", "relaxed"} {
		b.Run(durability, func(b *testing.B) {
			var flags []string
			if durability == "relaxed" {
				flags = []string{"--relaxed-sync"}
			}
			url, creds := natsProcess(b, flags...)
			first := connect(b, url, filepath.Join(creds, "admin.nk"), broker.InboxFor("worker", "setup"))
			setUp(b, first)
			fill(b, url, creds, "m", requests)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var warm atomic.Bool
			var all sync.WaitGroup
			var mu sync.Mutex
			var took []time.Duration
			for i := range workers {
				wid := fmt.Sprintf("w%d", i)
				side := benchWorker(b, connect(b, url, filepath.Join(creds, "admin.nk"), broker.InboxFor("worker", wid)), wid, 1)
				all.Go(func() {
					think(ctx) // so that they do not begin together
					for ctx.Err() == nil {
						start := time.Now()
						j, err := side.Take(ctx)
						if err != nil {
							return
						}
						if warm.Load() {
							mu.Lock()
							took = append(took, time.Since(start))
							mu.Unlock()
						}
						think(ctx)
						harness.Must(b, j.Done(b.Context(), outcome(j)))
					}
				})
			}
			<-time.After(7 * time.Second) // the first round is not counted
			warm.Store(true)
			<-time.After(20 * time.Second)
			cancel()
			all.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(len(took)), "claims")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50_ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99_ms")
		})
	}
}

func think(ctx context.Context) {
	t := time.NewTimer(4*time.Second + rand.N(2*time.Second))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
