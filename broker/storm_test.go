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
	const workers = 100
	brokers := make([]*broker.Broker, workers)
	for i := range workers {
		wid := fmt.Sprintf("s%d", i)
		brokers[i] = b.dial(t, b.server.WorkerCreds(), broker.InboxFor("worker", wid))
		side, err := brokers[i].WorkerSide(broker.WorkerConfig{Worker: wid, Instance: "i1"})
		must(t, err)
		keepTaking(t, side)
		runSide(t, side)
	}
	alive := func() int {
		n := 0
		s, err := b.js(t).Stream(t.Context(), subjects.StreamLeases)
		if err != nil {
			return 0
		}
		for i := range workers {
			if _, err := s.GetLastMsgForSubject(t.Context(), subjects.Lease(fmt.Sprintf("s%d", i), "i1")); err == nil {
				n++
			}
		}
		return n
	}
	eventuallyWithin(t, 30*time.Second, "all leases", func() bool { return alive() == workers })
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
	eventuallyWithin(t, 30*time.Second, "all leases after the storm", func() bool { return alive() == workers })
	t.Logf("%d workers were back after %s", workers, time.Since(start).Round(10*time.Millisecond))
	eventually(t, "as many subscriptions as before", func() bool { return heard() <= before+workers }) // one is being armed anew
}
