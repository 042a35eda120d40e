package trainer

import (
	"context"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/schema"
)

// unansweredFor is the time after which calls that nobody asks for are reported.
const unansweredFor = 3 * time.Second

// obstacles logs why the rollouts of this process do not go on.
type obstacles struct {
	*base
	backlog  *backlog
	blockers *blockers
	rollouts *rollouts
	handout  *handout
	lines    quiet.Lines     // about calls and slots
	logged   map[string]bool // reasons for which no live worker can run some rollouts; used by look alone
}

// look looks at the calls that nobody asks for, and at the rollouts that wait for a worker.
func (o *obstacles) look() {
	o.lookAtCalls()
	waiting := o.backlog.waiting()
	if len(waiting) == 0 {
		return
	}
	op, cancel := context.WithTimeout(o.life, 5*time.Second)
	defer cancel()
	fleet, err := o.requests.Fleet(op)
	if err != nil {
		return
	}
	for _, w := range waiting {
		needs := w.request.Needs()
		why := fleet.Unable(&needs)
		if why == "" || o.logged[why] || !o.backlog.isQueued(op, w.request.ID) {
			continue
		}
		if len(o.logged) >= maxQueued {
			clear(o.logged)
		}
		o.logged[why] = true
		o.cfg.Log.Warn().Str("rollout", string(w.request.ID)).Msg("a rollout waits: " + why)
	}
	o.lookAtSlots(op, &fleet, &waiting[0])
}

// lookAtCalls looks at calls that neither Serve nor Next has asked for.
func (o *obstacles) lookAtCalls() {
	if o.handout.asked.Load() {
		return
	}
	calls, oldest := 0, time.Duration(0)
	for _, c := range o.rollouts.calls() {
		if since, ok := c.waits(); ok {
			calls++
			oldest = max(oldest, time.Since(since))
		}
	}
	if oldest >= unansweredFor {
		o.say(fmt.Sprintf("%d model calls wait for an answer, the first for %s: call Serve, or answer those of Next", calls, oldest.Round(time.Second)))
	}
}

// lookAtSlots looks for rollouts of other processes that have all slots.
func (o *obstacles) lookAtSlots(ctx context.Context, fleet *schema.Fleet, waiting *submitted) {
	if fleet.HasFree(&waiting.request) || !o.backlog.isQueued(ctx, waiting.request.ID) {
		return
	}
	if has := o.blockers.text(ctx); has != "" {
		o.say("no rollout of this process runs: " + fleet.Queued(&waiting.request) + "; " + has)
	}
}

func (o *obstacles) say(text string) {
	if _, speak := o.lines.Speak(text, time.Now()); speak {
		o.cfg.Log.Warn().Msg(text)
	}
}
