package operate

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// Bounds of an Activity.
const (
	activityWindow = time.Minute      // in which calls are counted
	activityPast   = 10 * time.Minute // of events that are read at first
	maxActive      = 100_000          // rollouts, and calls, that are kept
	maxPhaseName   = 40
)

// PhaseUnknown is the phase of a rollout without a recent event.
const PhaseUnknown = "not known"

// Activity sums up the events of a running system. It is safe for concurrent use.
type Activity struct {
	mu     sync.Mutex
	phases map[schema.ID]*activePhase
	calls  []endedCall // by their ends
}

type activePhase struct {
	name string
	at   time.Time
}

type endedCall struct {
	at     time.Time
	took   time.Duration
	failed bool
}

// NewActivity returns one that has seen no event.
func NewActivity() *Activity { return &Activity{phases: map[schema.ID]*activePhase{}} }

// Follow reads the events of all rollouts, from the last ten minutes and then new ones, until
// the context ends. It calls ready before the new ones. It needs the rights of an operator.
func (a *Activity) Follow(ctx context.Context, b *broker.Broker, ready func()) error {
	tap, err := b.Events.Tap(ctx, "")
	if err != nil {
		return err
	}
	if err := tap.Since(ctx, time.Now().Add(-activityPast)); err != nil {
		tap.Close()
		return err
	}
	one := func(_ broker.Place, e schema.Event) { a.Event(&e) }
	if err := tap.Past(ctx, one); err != nil {
		tap.Close()
		return err
	}
	ready()
	return tap.Run(ctx, one)
}

// Event takes an event into account.
func (a *Activity) Event(e *schema.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := time.UnixMilli(e.At)
	switch {
	case e.Type == schema.EventResult:
		delete(a.phases, e.Rollout)
	case e.Phase != nil && !e.Phase.Ended:
		if len(a.phases) >= maxActive {
			clear(a.phases)
		}
		a.phases[e.Rollout] = &activePhase{phaseName(e.Phase.Name), at}
	case e.LLM != nil && e.LLM.Call == nil && (e.LLM.MS > 0 || e.LLM.Reply != nil || e.LLM.Fault != nil):
		if len(a.calls) >= maxActive {
			a.calls = slices.Delete(a.calls, 0, maxActive/2)
		}
		a.calls = append(a.calls, endedCall{at, time.Duration(e.LLM.MS) * time.Millisecond, e.LLM.Fault != nil})
	}
	if p := a.phases[e.Rollout]; p != nil && at.After(p.at) {
		p.at = at
	}
}

// phaseName makes one name of the phases of all steps: a task chooses the names of its
// steps.
func phaseName(name string) string {
	name = name[strings.LastIndexByte(name, '/')+1:]
	name, _, _ = strings.Cut(name, "[")
	return schema.Clip(name, maxPhaseName)
}

// ActivitySum is a sum at one moment.
type ActivitySum struct {
	Phases map[string]int `json:"phases"` // running rollouts, by phase
	Calls  CallSum        `json:"calls"`
}

// CallSum sums up the model calls that ended in the last minute.
type CallSum struct {
	Ended     int      `json:"ended"`
	Failed    int      `json:"failed"`
	PerSecond float64  `json:"per_second"`
	P50       *float64 `json:"p50_seconds"` // of the calls that did not fail; null: there is none
	P99       *float64 `json:"p99_seconds"`
}

// Sum sums up the running rollouts that the workers announce, and the calls.
func (a *Activity) Sum(now time.Time, workers []schema.Presence) ActivitySum {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := ActivitySum{Phases: map[string]int{}}
	running := map[schema.ID]bool{}
	for _, w := range workers {
		for _, id := range w.Running {
			running[id] = true
		}
	}
	for id, p := range a.phases {
		switch {
		case running[id], now.Sub(p.at) < activityWindow: // a worker announces its rollouts at intervals
			out.Phases[p.name]++
			delete(running, id)
		case now.Sub(p.at) > activityPast:
			delete(a.phases, id)
		}
	}
	if len(running) > 0 {
		out.Phases[PhaseUnknown] = len(running)
	}
	a.calls = slices.DeleteFunc(a.calls, func(c endedCall) bool { return now.Sub(c.at) > activityWindow })
	var took []time.Duration
	for _, c := range a.calls {
		if c.failed {
			out.Calls.Failed++
		} else {
			took = append(took, c.took)
		}
	}
	out.Calls.Ended = len(a.calls)
	out.Calls.PerSecond = float64(len(a.calls)) / activityWindow.Seconds()
	slices.Sort(took)
	out.Calls.P50, out.Calls.P99 = quantile(took, 50), quantile(took, 99)
	return out
}

// quantile returns the least value that is not below a percentage of the sorted values,
// in seconds.
func quantile(sorted []time.Duration, percent int) *float64 {
	if len(sorted) == 0 {
		return nil
	}
	v := sorted[(len(sorted)*percent+99)/100-1].Seconds()
	return &v
}
