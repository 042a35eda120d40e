package queue

import (
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
)

// TestARequestThatArrivesAsAWaitEndsGoesBack delivers a request at the moment at
// which the wait for it ends. It must not stay unsettled for an ack wait. Its goroutines
// spin to meet, so it runs beside no other test.
func TestARequestThatArrivesAsAWaitEndsGoesBack(t *testing.T) {
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "state"), Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	b, err := broker.Dial(t.Context(), broker.Config{URL: srv.URL(), Creds: srv.AdminCreds(), Inbox: broker.InboxFor("admin", "admin"), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p := newPuller(&base{broker: b, log: zerolog.Nop()}, newLanes(), nil)
	queues, _ := p.lanes.every()
	for i := range 5_000 {
		a := &armed{p: p, queues: queues, got: make(chan *delivery, 1), status: make(chan error, 1)}
		m := &nats.Msg{Subject: "rollout.requests.p1.alpha", Reply: "$JS.ACK." + queues[0].stream + "." + queues[0].consumer + ".1.1.1.1.0", Data: []byte("{}")}
		var all sync.WaitGroup
		var ready atomic.Int32
		meet := func(after int) {
			for ready.Add(1); ready.Load() < 2; {
				runtime.Gosched()
			}
			for range after {
				ready.Load()
			}
		}
		all.Go(func() {
			meet(0)
			a.on(m)
		})
		all.Go(func() {
			meet(i % 1000)
			a.close()
		})
		all.Wait()
		if len(a.got) > 0 {
			t.Fatalf("round %d: a request is left", i)
		}
	}
}
