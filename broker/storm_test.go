package broker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/subjects"
)

// A server that comes back is met by all workers at once: each has its lease
// within seconds, and none hears more than before.
func TestAReconnectStorm(t *testing.T) {
	b := newBench(t)
	const workers = 1000
	b.leave() // its durations are shorter than the others'
	must(t, b.dial(t, b.server.WorkerCreds(), broker.InboxFor("worker", "setup")).Setup(t.Context(), broker.StreamsConfig{}))
	brokers := make([]*broker.Broker, workers)
	for i := range workers {
		wid := fmt.Sprintf("s%d", i)
		brokers[i] = b.dial(t, b.server.WorkerCreds(), broker.InboxFor("worker", wid))
		side, err := brokers[i].WorkerSide(broker.WorkerConfig{Worker: wid, Instance: "i1"})
		must(t, err)
		keepTaking(t, side)
		runSide(t, side)
	}
	js := b.js(t)
	alive := func() int {
		s, err := js.Stream(t.Context(), subjects.StreamLeases)
		if err != nil {
			return 0
		}
		return int(s.CachedInfo().State.NumSubjects)
	}
	eventuallyWithin(t, 60*time.Second, "all leases", func() bool { return alive() >= workers })
	heard := func() (n int) {
		for _, br := range brokers {
			n += br.Subscriptions()
		}
		return n
	}
	before := heard()
	b.server.Shutdown()
	b.restart(t)
	start := time.Now()
	eventuallyWithin(t, 60*time.Second, "all leases after the storm", func() bool { return alive() >= workers })
	t.Logf("%d workers were back after %s", workers, time.Since(start).Round(10*time.Millisecond))
	eventually(t, "as many subscriptions as before", func() bool { return heard() <= before+workers }) // one is being armed anew
}
