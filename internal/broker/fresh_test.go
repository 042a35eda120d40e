package broker_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

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
