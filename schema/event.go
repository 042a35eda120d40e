package schema

import "encoding/json"

// EventType is the type of an event. It is also a token of the event's subject.
type EventType string

// The types of events.
const (
	EventPhase  EventType = "phase"  // a phase began or ended
	EventStep   EventType = "step"   // the agent said or did something
	EventLLM    EventType = "llm"    // a model call began, ended or failed
	EventLog    EventType = "log"    // output of the agent, setup or verifier
	EventWait   EventType = "wait"   // the rollout waits for something, or the wait ended
	EventNet    EventType = "net"    // a connection through the allowlist's proxy began, ended or was refused
	EventVerify EventType = "verify" // the trainer that verifies did something in the sandbox
	EventShell  EventType = "shell"  // an operator's command in the sandbox began or ended
	EventResult EventType = "result" // the rollout has ended
)

// Event shows people the progress of a rollout. Nothing depends on events: a
// full stream or a slow tap never delays a rollout.
type Event struct {
	V       int       `json:"v"`
	Type    EventType `json:"type"`
	Rollout ID        `json:"id"`
	Attempt int       `json:"attempt"`
	Index   int64     `json:"index"` // 1, 2, ... within the attempt
	At      int64     `json:"at"`    // Unix ms

	Phase  *PhaseEvent     `json:"phase,omitempty"`
	Step   json.RawMessage `json:"step,omitempty"` // an event of the agent: kind (text, tool_call, tool_result, usage, error, other), and text, tool, id, input, output or usage
	LLM    *LLMEvent       `json:"llm,omitempty"`
	Log    *LogEvent       `json:"log,omitempty"`
	Wait   *WaitEvent      `json:"wait,omitempty"`
	Net    *NetEvent       `json:"net,omitempty"`
	Verify *VerifyEvent    `json:"verify,omitempty"`
	Shell  *ShellEvent     `json:"shell,omitempty"`
	Result *Result         `json:"result,omitempty"`
}

// PhaseEvent reports that a phase began, or ended after MS with Exit.
type PhaseEvent struct {
	Name  string `json:"name"`
	Ended bool   `json:"ended,omitempty"`
	MS    int64  `json:"ms,omitempty"`
	Exit  *Exit  `json:"exit,omitempty"`
	Fault *Fault `json:"fault,omitempty"`
}

// LLMEvent tells that a model call began (Call is set) or ended (Reply or Fault
// is set).
type LLMEvent struct {
	Number int    `json:"number"`
	Gen    string `json:"gen,omitempty"`
	MS     int64  `json:"ms,omitempty"`
	Call   *Call  `json:"call,omitempty"`
	Reply  *Reply `json:"reply,omitempty"`
	Fault  *Fault `json:"fault,omitempty"`
	// Note lists changes that the gate made to the call or its answer. It is set
	// instead of Call or Reply when they are too large to show.
	Note string `json:"note,omitempty"`
}

// LogEvent is a piece of output.
type LogEvent struct {
	Source string `json:"source"` // agent, setup[0], verify, ...
	Stream string `json:"stream"` // stdout or stderr
	Text   string `json:"text"`
}

// NetEvent tells of one connection that a process in the sandbox requested from
// the proxy of the allowlist.
type NetEvent struct {
	Number  int    `json:"number"` // 1, 2, ... within the rollout
	Phase   string `json:"phase"`  // of the rollout: agent, verify, ...
	Host    string `json:"host"`
	Port    int    `json:"port"`
	Address string `json:"address,omitempty"` // IP address of the host
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason,omitempty"` // of a refusal or failure
	Ended   bool   `json:"ended,omitempty"`
	Sent    int64  `json:"sent,omitempty"`     // bytes from the sandbox
	Got     int64  `json:"received,omitempty"` // bytes to the sandbox
	MS      int64  `json:"ms,omitempty"`
	// Omitted counts the connections without an event. It is set in the last
	// event of a rollout that made very many connections.
	Omitted int64 `json:"omitted,omitempty"`
}

// VerifyEvent tells of one operation of a trainer that verifies, after it ended. The
// output of a command comes as events of type log.
type VerifyEvent struct {
	Number  int    `json:"number"` // of the operation
	Do      string `json:"do"`     // as in Operation
	Path    string `json:"path,omitempty"`
	Command string `json:"command,omitempty"` // its beginning
	Bytes   int64  `json:"bytes,omitempty"`   // that were read or written
	MS      int64  `json:"ms,omitempty"`
	Exit    *Exit  `json:"exit,omitempty"`
	Fault   *Fault `json:"fault,omitempty"`
}

// ShellEvent tells that an operator's command in the sandbox of a rollout began, or
// ended after MS with Exit or Fault.
type ShellEvent struct {
	Number  int    `json:"number"`            // 1, 2, ... within the attempt
	By      string `json:"by,omitempty"`      // name that the operator gives, such as ann@host; it is not checked
	Part    string `json:"part,omitempty"`    // verifier: in the sandbox of a separate verifier
	User    string `json:"user,omitempty"`    // of the command; empty: the sandbox's
	Command string `json:"command,omitempty"` // its beginning
	Ended   bool   `json:"ended,omitempty"`
	MS      int64  `json:"ms,omitempty"`
	Exit    *Exit  `json:"exit,omitempty"`
	Fault   string `json:"fault,omitempty"` // reason why the command did not run to its end
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

func (e *Event) check() error {
	if err := checkOneOf("type", string(e.Type), string(EventPhase), string(EventStep), string(EventLLM), string(EventLog), string(EventWait), string(EventNet), string(EventVerify), string(EventShell), string(EventResult)); err != nil {
		return err
	}
	if _, err := ParseID(string(e.Rollout)); err != nil {
		return err
	}
	if e.Wait != nil {
		if err := e.Wait.validate(); err != nil {
			return err
		}
	}
	return checkRange("attempt", e.Attempt, 0, 1<<30)
}
