package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func TestLiveDeltasReachCurrentWatchers(t *testing.T) {
	b := testenv.StartPool(t)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.OpsCreds(), broker.InboxFor("ops", "ops"))
	sub, err := nc.SubscribeSync("rollout.*.live.*")
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	b.Broker.Events.Live("alpha-1", 2, 7, &schema.Delta{V: 1, Delta: []byte(`{"content":"a"}`)})
	m, err := sub.NextMsg(10 * time.Second)
	harness.Must(t, err)
	var d schema.Delta
	harness.Must(t, schema.Decode(m.Data, &d))
	if m.Subject != subjects.Live("alpha-1", 2) || m.Header.Get(subjects.HeaderCall) != "7" || string(d.Delta) != `{"content":"a"}` {
		t.Fatalf("got %s %v %s", m.Subject, m.Header, d.Delta)
	}
}

func TestTapSeesEventsInOrder(t *testing.T) {
	b := testenv.StartPool(t)
	for i := range 3 {
		b.Broker.Events.Emit(&schema.Event{Type: schema.EventPhase, Rollout: "alpha-1", Attempt: 1, Index: int64(i + 1), Phase: &schema.PhaseEvent{Name: "agent"}})
	}
	ops := b.Dial(t, b.Server.OpsCreds(), broker.InboxFor("ops", "ops"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var seen []int64
	tap, err := ops.Events.Tap(ctx, "alpha-1")
	harness.Must(t, err)
	harness.Must(t, tap.Run(ctx, func(_ broker.Place, e schema.Event) {
		if seen = append(seen, e.Index); len(seen) == 3 {
			cancel()
		}
	}))
	if len(seen) != 3 || seen[0] != 1 || seen[2] != 3 {
		t.Fatalf("got %v", seen)
	}
}
