package gate

import (
	"time"

	"github.com/turngate/turngate/schema"
)

// waiting is the reason why a call waits, in the form of its event.
type waiting struct {
	schema.WaitEvent
	since    time.Time
	reported time.Time
}

// reportAgain is the interval of events of a wait that goes on unchanged.
const reportAgain = 30 * time.Second

// maxBadAnswers is the number of refused answers in a row after which a call
// fails: the next answer would be refused as well.
const maxBadAnswers = 3

// waitEvents notes by a frame whether its call waits. It returns the events to
// send; an error ends the call. The caller holds the lock.
func (x *exchange) waitEvents(f schema.Frame) (events []schema.WaitEvent, err error) {
	switch {
	case f.Kind == schema.FrameAbsent:
		to, name := schema.WaitTrainer, ""
		if f.Upstream != "" {
			to, name = schema.WaitUpstream, f.Upstream
		}
		events = x.beginWait(to, name, f.Fault)
		if f.Fault == nil || f.Fault.Code != schema.CodeBadAnswer {
			x.badAnswers = 0
			return events, nil
		}
		x.refused++
		x.badAnswers++
		why := ""
		switch {
		case x.released: // the agent has a part of it
			why = "an answer was refused after the agent's stream had begun: "
		case x.badAnswers >= maxBadAnswers:
			why = "three answers in a row were refused; the last: "
		default:
			return events, nil
		}
		last := *f.Fault
		last.Message = schema.Clip(why+last.Message, maxWaitText)
		return events, &last
	case f.Held:
		return x.beginWait(schema.WaitHold, "", nil), nil
	case f.Kind == schema.FrameAccept && x.wait != nil && x.wait.For != schema.WaitHold && x.wait.Fault != nil:
		return nil, nil // the call is sent again; that is not an answer yet
	default:
		return x.endWait(), nil
	}
}

// beginWait notes that the call waits, and returns the events to send. The caller
// holds the lock.
func (x *exchange) beginWait(to, name string, why *schema.Fault) (events []schema.WaitEvent) {
	now := time.Now()
	if x.wait != nil && (x.wait.For != to || x.wait.Name != name) {
		events = x.endWait()
	}
	fresh := x.wait == nil
	if fresh {
		x.wait = &waiting{WaitEvent: schema.WaitEvent{For: to, Name: name, Call: x.number}, since: now}
	}
	w := x.wait
	if to != schema.WaitHold && to != schema.WaitSlot {
		w.Tries++
	}
	changed := (why == nil) != (w.Fault == nil) || why != nil && why.Message != w.Fault.Message
	if changed {
		w.Fault = nil
		if why != nil {
			fault := *why
			fault.Message = schema.Clip(fault.Message, maxWaitText)
			w.Fault = &fault
		}
	}
	if !fresh && !changed && now.Sub(w.reported) < reportAgain {
		return events
	}
	w.reported, w.MS = now, now.Sub(w.since).Milliseconds()
	return append(events, w.WaitEvent)
}

// maxWaitText bounds the text of a fault that is sent repeatedly, in bytes.
const maxWaitText = 4000

// endWait notes that the call no longer waits, and returns the event to send. The
// caller holds the lock.
func (x *exchange) endWait() []schema.WaitEvent {
	w := x.wait
	if w == nil {
		return nil
	}
	x.wait = nil
	end := w.WaitEvent
	end.MS, end.Ended = time.Since(w.since).Milliseconds(), true
	return []schema.WaitEvent{end}
}

// report passes events of waits to the observer.
func (x *exchange) report(events []schema.WaitEvent) {
	for _, e := range events {
		x.s.cfg.Observer.CallWaits(e)
	}
}
