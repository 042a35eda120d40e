package broker_test

import (
	"context"
	"encoding/json"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestALoadThatIsNoNumber: JSON has no form for it, and a list of workers with one would have no
// JSON at all.
func TestALoadThatIsNoNumber(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	odd := &schema.Presence{V: schema.Version, Worker: "w1", Instance: "i1", Slots: 2, Offer: schema.Offer{CPUs: math.Inf(1)}, Load: &schema.Load{Load: math.NaN()}}
	data, err := schema.Encode(odd)
	harness.Must(t, err)
	nc := testenv.Raw(t, n.URL(), n.WorkerCreds("w1"), broker.InboxFor("worker", "w1"))
	_, err = nc.Request(subjects.Presence("w1", "i1"), data, 10*time.Second)
	harness.Must(t, err)
	all, err := n.Ops(t).Records.Workers(t.Context())
	harness.Must(t, err)
	if _, err := json.Marshal(all); err != nil || len(all) != 1 || all[0].Slots != 2 {
		t.Errorf("got %+v, %v", all, err)
	}
}

// TestATapBeginsBeforeTheFirstWorker: an operator's tap of a server without streams shows the
// first event of the first worker.
func TestATapBeginsBeforeTheFirstWorker(t *testing.T) {
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Trainers: []string{"alpha"}, Workers: []string{"w1"}, Relaxed: true, Log: zerolog.Nop()})
	dial := func(creds, role, name string) *broker.Broker {
		b, err := broker.Dial(t.Context(), broker.Config{URL: srv.URL(), Creds: creds, Name: name, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
		harness.Must(t, err)
		t.Cleanup(b.Close)
		return b
	}
	ops := dial(srv.OpsCreds(), broker.RoleOps, "ops")
	if list, err := ops.Dead.List(t.Context(), 10); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tap, err := ops.Events.Tap(ctx, "")
	harness.Must(t, err)
	harness.Must(t, tap.Since(ctx, time.Now().Add(-time.Hour)))
	harness.Must(t, tap.Past(ctx, func(broker.Place, schema.Event) { t.Error("an event of no stream") }))
	worker := dial(srv.WorkerCreds("w1"), "worker", "w1")
	harness.Must(t, worker.Streams.Setup(ctx, broker.StreamsConfig{}))
	worker.Events.Emit(&schema.Event{Type: schema.EventPhase, Rollout: "alpha-1", Attempt: 1, Index: 7, Phase: &schema.PhaseEvent{Name: "agent"}})
	var seen int64
	harness.Must(t, tap.Run(ctx, func(_ broker.Place, e schema.Event) {
		seen = e.Index
		cancel()
	}))
	if seen != 7 {
		t.Errorf("got %d", seen)
	}
}
