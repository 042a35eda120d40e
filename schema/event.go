package schema

import "encoding/json"

// EventType is what an event tells of; it is also a token of its subject.
type EventType string

// The types of events.
const (
	EventPhase  EventType = "phase"  // a stage began or ended
	EventStep   EventType = "step"   // the agent said or did something
	EventLLM    EventType = "llm"    // a model call began, ended or failed
	EventLog    EventType = "log"    // output of the agent, setup or verifier
	EventResult EventType = "result" // the rollout has ended
)

// Event tells people what a rollout does. Nothing depends on it: a full stream
// or a slow tap never holds a rollout up.
type Event struct {
	V       int       `json:"v"`
	Type    EventType `json:"type"`
	Rollout ID        `json:"id"`
	Attempt int       `json:"attempt"`
	Index   int64     `json:"index"` // 1, 2, ... within the attempt
	At      int64     `json:"at"`    // Unix ms

	Phase  *PhaseEvent     `json:"phase,omitempty"`
	Step   json.RawMessage `json:"step,omitempty"` // the agent's own event, see agents.Event
	LLM    *LLMEvent       `json:"llm,omitempty"`
	Log    *LogEvent       `json:"log,omitempty"`
	Result *Result         `json:"result,omitempty"`
}

// PhaseEvent tells that a stage began, or ended after MS with Exit.
type PhaseEvent struct {
	Name  string `json:"name"`
	Ended bool   `json:"ended,omitempty"`
	MS    int64  `json:"ms,omitempty"`
	Exit  *Exit  `json:"exit,omitempty"`
	Fault *Fault `json:"fault,omitempty"`
}

// LLMEvent tells of one model call. Begun: Call is set. Ended: Reply or Fault.
type LLMEvent struct {
	Number int    `json:"number"`
	Gen    string `json:"gen,omitempty"`
	MS     int64  `json:"ms,omitempty"`
	Call   *Call  `json:"call,omitempty"`
	Reply  *Reply `json:"reply,omitempty"`
	Fault  *Fault `json:"fault,omitempty"`
	// Note is set instead of Call or Reply when they are too large to show.
	Note string `json:"note,omitempty"`
}

// LogEvent is a piece of output.
type LogEvent struct {
	Source string `json:"source"` // agent, setup[0], verify, ...
	Stream string `json:"stream"` // stdout or stderr
	Text   string `json:"text"`
}

func (e *Event) sizeHint() int {
	n := len(e.Step)
	if e.LLM != nil && e.LLM.Call != nil {
		n += e.LLM.Call.sizeHint()
	}
	if e.LLM != nil && e.LLM.Reply != nil {
		n += e.LLM.Reply.sizeHint()
	}
	if e.Log != nil {
		n += len(e.Log.Text)
	}
	return n
}

// Validate checks the event.
func (e *Event) Validate() error {
	if err := checkOneOf("type", string(e.Type), string(EventPhase), string(EventStep), string(EventLLM), string(EventLog), string(EventResult)); err != nil {
		return err
	}
	if _, err := ParseID(string(e.Rollout)); err != nil {
		return err
	}
	return checkRange("attempt", e.Attempt, 0, 1<<30)
}
