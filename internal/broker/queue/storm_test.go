package queue_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// When a server comes back, all workers reconnect at once. Each must have its
// lease within seconds, and none may have more subscriptions than before.
func TestAReconnectStorm(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	workers := 1000
	if underRace {
		workers = 100
	}
	b.Leave() // this worker has shorter durations than the others
	harness.Must(t, b.Dial(t, testenv.AdmitWorker(t, b.Server, "setup"), broker.InboxFor("worker", "setup")).Streams.Setup(t.Context(), broker.StreamsConfig{}))
	for i := range workers {
		harness.Must(t, b.Server.AddWorker(fmt.Sprintf("s%d", i), ""))
	}
	harness.Must(t, b.Server.Reload())
	brokers := make([]*broker.Broker, workers)
	stops := make([]func(), workers)
	for i := range workers {
		wid := fmt.Sprintf("s%d", i)
		brokers[i] = b.Dial(t, b.Server.WorkerCreds(wid), broker.InboxFor("worker", wid))
		var side *queue.Worker
		harness.Eventually(t, "the worker "+wid, 5*time.Minute, func() (ok bool) { // a busy machine answers late
			var err error
			side, err = queue.NewWorker(brokers[i], queue.WorkerConfig{Worker: wid, Instance: "i1"})
			return err == nil
		})
		keepTaking(t, side)
		stops[i] = testenv.RunWorker(t, side)
	}
	t.Cleanup(func() { // all at once: one after the other takes minutes on a busy machine
		var all sync.WaitGroup
		for _, stop := range stops {
			all.Go(stop)
		}
		all.Wait()
	})
	js := b.JetStream(t)
	alive := func() int {
		s, err := js.Stream(t.Context(), subjects.StreamLeases)
		if err != nil {
			return 0
		}
		return int(s.CachedInfo().State.NumSubjects)
	}
	harness.Eventually(t, "all leases", 5*time.Minute, func() bool { return alive() >= workers })
	heard := func() (n int) {
		for _, br := range brokers {
			n += br.CallConn().NumSubscriptions() + br.BulkConn().NumSubscriptions()
		}
		return n
	}
	before := heard()
	b.Server.Shutdown()
	b.Restart(t)
	start := time.Now()
	harness.Eventually(t, "all leases after the storm", 5*time.Minute, func() bool { return alive() >= workers })
	t.Logf("%d workers were back after %s", workers, time.Since(start).Round(10*time.Millisecond))
	harness.Eventually(t, "as many subscriptions as before", 5*time.Minute, func() bool { return heard() <= before+workers }) // one of each worker's is being made again
}
