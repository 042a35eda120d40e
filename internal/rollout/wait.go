package rollout

import (
	"time"

	"github.com/turngate/turngate/schema"
)

// shortWait is the time that a usual wait may take before an event reports it.
const shortWait = 2 * time.Second

// waits emits an event when the rollout stops because its worker cannot reach
// the server, and when it continues.
func (r *Rollout) waits(suspended bool, stood time.Duration) {
	r.Record.Events.Emit(&schema.Event{Type: schema.EventWait, Wait: &schema.WaitEvent{For: schema.WaitServer, MS: stood.Milliseconds(), Ended: !suspended}})
}

// waitsLong emits an event if a wait takes longer than shortWait. over ends the
// wait.
func (r *Rollout) waitsLong(what, name, note string) (over func()) {
	start := time.Now()
	tell := func(ended bool) {
		r.Record.Events.Emit(&schema.Event{Type: schema.EventWait, Wait: &schema.WaitEvent{For: what, Name: schema.Clip(name, 200), Note: note, MS: time.Since(start).Milliseconds(), Ended: ended}})
	}
	told := make(chan struct{})
	timer := time.AfterFunc(shortWait, func() {
		defer close(told)
		tell(false)
	})
	return func() {
		if !timer.Stop() {
			<-told
			tell(true)
		}
	}
}
