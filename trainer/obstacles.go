package trainer

import (
	"context"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/schema"
)

// unansweredFor is the time after which calls that nobody asks for, or that are held, are reported.
const unansweredFor = 3 * time.Second

// obstacles logs why the rollouts of this process do not go on.
type obstacles struct {
	*base
	backlog  *backlog
	blockers *blockers
	rollouts *rollouts
	handout  *handout
	lines    quiet.Lines     // about calls and slots
	hold     time.Time       // the begin of the hold that held is about; used by look alone
	held     *quiet.Lines    // about held calls; used by look alone
	logged   map[string]bool // reasons for which no live worker can run some rollouts; used by look alone
}

// look looks at the calls that nobody asks for or that are held, and at the rollouts
// that wait for a worker.
func (o *obstacles) look() {
	o.lookAtCalls()
	o.lookAtHold()
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
	calls, oldest, held := 0, time.Duration(0), o.handout.held()
	for _, c := range o.rollouts.calls() {
		if since, ok := c.waits(); ok && !held[c] {
			calls++
			oldest = max(oldest, time.Since(since))
		}
	}
	if oldest >= unansweredFor {
		o.say(fmt.Sprintf("%d model calls wait for an answer, the first for %s: call Serve, or answer those of Next", calls, oldest.Round(time.Second)))
	}
}

// lookAtHold looks at calls that wait until a hold ends.
func (o *obstacles) lookAtHold() {
	began := o.handout.heldSince()
	if o.held == nil || !began.Equal(o.hold) { // the line about another hold says nothing about this one
		o.hold, o.held = began, &quiet.Lines{}
	}
	calls, oldest := 0, time.Duration(0)
	for c, held := range o.handout.held() {
		if since, ok := c.waits(); ok && held {
			calls++
			oldest = max(oldest, min(time.Since(since), time.Since(began)))
		}
	}
	if oldest < unansweredFor {
		return
	}
	text := fmt.Sprintf("%d model calls are held, the first for %s: Resume hands them out", calls, oldest.Round(time.Second))
	if _, speak := o.held.Speak(text, time.Now()); speak {
		o.cfg.Log.Warn().Msg(text)
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
