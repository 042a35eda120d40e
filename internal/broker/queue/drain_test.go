package queue_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestADrainingWorkerLeavesTheMessagesOfOthers lets a worker with a busy slot drain
// while a request that it could run is parked. It restarts the ack wait of its own
// message only, and settles no other.
func TestADrainingWorkerLeavesTheMessagesOfOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	keepTaking(t, b.NewWorker(t, "a", offers("dummy", 2)))
	able := b.NewWorker(t, "d", offers("special", 1))
	acks := settlements(t, b)
	b.Submit(t, special("alpha-1"))
	job := takeFrom(t, able)
	own := b.state(t, "alpha-1").OwnerSeq
	b.Submit(t, special("alpha-2"))
	queue, err := b.JetStream(t).Stream(t.Context(), subjects.Queue("alpha"))
	harness.Must(t, err)
	var others uint64
	harness.Eventually(t, "the other request to be parked", 5*time.Minute, func() bool {
		m, err := queue.GetLastMsgForSubject(t.Context(), subjects.ParkedOf("alpha-2"))
		if err == nil {
			others = m.Sequence
		}
		return err == nil
	})
	able.Drain(t.Context())
	began := acks.count(own, "+WPI")
	harness.Eventually(t, "the own message to be kept further", 5*time.Minute, func() bool { return acks.count(own, "+WPI") > began+3 })
	for _, word := range []string{"+WPI", "-NAK", "+ACK"} {
		if n := acks.count(others, word); n > 0 {
			t.Errorf("%d times %s for a message of others", n, word)
		}
	}
	harness.Must(t, job.Done(t.Context(), outcome(job)))
}

// acked counts the settlements of messages of alpha's queue that workers publish.
type acked struct {
	mu  sync.Mutex
	all map[string]int // by sequence and first word
}

func settlements(t *testing.T, b *bench) *acked {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(b.Server.AdminCreds())
	harness.Must(t, err)
	nc, err := nats.Connect(b.Server.URL(), key)
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	a := &acked{all: map[string]int{}}
	_, err = nc.Subscribe("$JS.ACK.>", func(m *nats.Msg) {
		meta, err := (&nats.Msg{Reply: m.Subject, Sub: m.Sub}).Metadata()
		if err != nil || meta.Stream != subjects.Queue("alpha") {
			return
		}
		word, _, _ := strings.Cut(string(m.Data), " ")
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all[fmt.Sprint(meta.Sequence.Stream, word)]++
	})
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	return a
}

func (a *acked) count(seq uint64, word string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[fmt.Sprint(seq, word)]
}

// TestADrainingWorkerStaysDraining waits for presences that a worker announces
// after its drain.
func TestADrainingWorkerStaysDraining(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key, err := nats.NkeyOptionFromSeed(b.Server.AdminCreds())
	harness.Must(t, err)
	nc, err := nats.Connect(b.Server.URL(), key)
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	sub, err := nc.SubscribeSync(subjects.WorkerStatus("w1"))
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	b.Worker.Drain(t.Context())
	drained := false
	for after := 0; after < 3; {
		m, err := sub.NextMsg(10 * time.Second)
		harness.Must(t, err)
		var p schema.Presence
		harness.Must(t, schema.Decode(m.Data, &p))
		if drained = drained || p.Draining; drained {
			after++
		}
		if drained && !p.Draining {
			t.Fatal("a draining worker announces that it takes requests")
		}
	}
}

// TestADrainDuringAClaimSpendsNoTry ends the wait for a request as soon as the
// state names the worker.
func TestADrainDuringAClaimSpendsNoTry(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	key, err := nats.NkeyOptionFromSeed(b.Server.AdminCreds())
	harness.Must(t, err)
	nc, err := nats.Connect(b.Server.URL(), key)
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	for i := range 20 {
		id := schema.ID(fmt.Sprintf("alpha-%d", i))
		ctx, cancel := context.WithCancel(t.Context())
		sub, err := nc.Subscribe(subjects.State(id), func(*nats.Msg) { cancel() })
		harness.Must(t, err)
		harness.Must(t, nc.Flush())
		b.Submit(t, harness.Request(id))
		job, err := b.Worker.Take(ctx)
		harness.Must(t, sub.Unsubscribe())
		cancel()
		if err == nil {
			harness.Must(t, job.Return(t.Context(), nil, true, 0))
		}
		if s := b.state(t, id); s.Owned() || s.Tries != 0 {
			t.Fatalf("round %d: it took a job: %v; the state is %+v", i, err == nil, s)
		}
		job = b.Take(t)
		harness.Must(t, job.Done(t.Context(), outcome(job)))
	}
}
