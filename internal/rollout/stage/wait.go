package stage

import (
	"context"
	"time"

	"github.com/turngate/turngate/schema"
)

// shortWait is the time that a usual wait may take before an event reports it.
const shortWait = 2 * time.Second

// Follow makes the clock stand still and freezes the sandboxes while the rollout is
// suspended, until Clock.End. Only the first call has an effect.
func (s *Stages) Follow(ctx context.Context, suspended func() (bool, <-chan struct{})) {
	s.Clock.follow(ctx, suspended, s.stood, s.Record.Log)
}

// stood emits an event when the rollout stops because its worker cannot reach
// the server, and when it continues.
func (s *Stages) stood(suspended bool, stood time.Duration) {
	s.Record.Events.Emit(&schema.Event{Type: schema.EventWait, Wait: &schema.WaitEvent{For: schema.WaitServer, MS: stood.Milliseconds(), Ended: !suspended}})
}

// Waits emits an event if a wait takes longer than shortWait. over ends the
// wait.
func (s *Stages) Waits(what, name, note string) (over func()) {
	start := time.Now()
	emit := func(ended bool) {
		s.Record.Events.Emit(&schema.Event{Type: schema.EventWait, Wait: &schema.WaitEvent{For: what, Name: schema.Clip(name, 200), Note: note, MS: time.Since(start).Milliseconds(), Ended: ended}})
	}
	emitted := make(chan struct{})
	timer := time.AfterFunc(shortWait, func() {
		defer close(emitted)
		emit(false)
	})
	return func() {
		if !timer.Stop() {
			<-emitted
			emit(true)
		}
	}
}
