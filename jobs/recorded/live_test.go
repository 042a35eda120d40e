package recorded_test

import (
	"context"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// An operator hears all events of a rollout from the first one on, in order and over a
// restart of the server; its trainer hears the later phases and waits.
func TestListen(t *testing.T) {
	b := testenv.StartPool(t)
	emit := func(id schema.ID, e schema.Event) {
		e.Rollout, e.Attempt = id, 1
		b.Broker.Events.Emit(&e)
	}
	phase := func(name string) schema.Event {
		return schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: name}}
	}
	output := func(text string) schema.Event {
		return schema.Event{Type: schema.EventLog, Log: &schema.LogEvent{Source: "agent", Text: text}}
	}
	emit("alpha-1", phase("first"))
	emit("alpha-2", phase("of another rollout"))
	type heard struct {
		origin string
		n      uint64
		e      *schema.Event
	}
	listen := func(with func(context.Context, schema.ID, recorded.Listener) error) (<-chan heard, func()) {
		events, begun := make(chan heard, 1000), make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var origin string
		go func() {
			ended <- with(ctx, "alpha-1", recorded.Listener{
				Begin: func(o string, _ uint64) {
					if origin == "" {
						close(begun)
					}
					origin = o
				},
				Event: func(n uint64, e *schema.Event) { events <- heard{origin, n, e} },
				Piece: func(int, int, *schema.Delta) {},
			})
		}()
		<-begun
		return events, func() {
			stop()
			harness.Must(t, <-ended)
		}
	}
	next := func(events <-chan heard) heard {
		t.Helper()
		select {
		case h := <-events:
			return h
		case <-time.After(time.Minute):
			t.Fatal("no event was heard")
			return heard{}
		}
	}

	ops := b.Dial(t, b.Server.OpsCreds(), broker.InboxFor("ops", "ops"))
	events, stop := listen(recorded.On(ops).Listen)
	first := next(events)
	if first.e.Phase == nil || first.e.Phase.Name != "first" || first.origin == "" {
		t.Fatalf("got %+v", first)
	}
	b.Server.Shutdown()
	b.Restart(t)
	var second heard
	for second.e == nil { // an event is lost while the server is away
		emit("alpha-1", output("second"))
		select {
		case second = <-events:
		case <-time.After(time.Second):
		}
	}
	if second.origin != first.origin || second.n <= first.n || second.e.Log == nil || second.e.Log.Text != "second" {
		t.Errorf("got %+v after %+v", second, first)
	}
	stop()

	alpha := b.Dial(t, b.Server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
	events, stop = listen(recorded.On(alpha).ListenAs)
	var own heard
	for own.e == nil { // the subscription may begin later
		emit("alpha-1", output("not for a trainer"))
		emit("alpha-1", phase("own"))
		select {
		case own = <-events:
		case <-time.After(time.Second):
		}
	}
	if own.n != 1 || own.e.Phase == nil || own.e.Phase.Name != "own" {
		t.Errorf("got %+v", own)
	}
	stop()
}
