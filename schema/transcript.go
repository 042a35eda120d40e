package schema

import "encoding/json"

// TranscriptLine is one line of a rollout's transcript, an artifact of JSON
// lines, compressed with zstd. A call has two lines, its request and its end;
// a tool that the trainer ran has one.
type TranscriptLine struct {
	At   int64 `json:"at,omitempty"`   // Unix ms, for people
	Call int   `json:"call,omitempty"` // 1, 2, ...: the call's number in its attempt

	Request *Call `json:"request,omitempty"` // with a base only its new part, as on the wire

	Gen   string `json:"gen,omitempty"` // at the call's end: the generation that answered it
	MS    int64  `json:"ms,omitempty"`  // duration of the call or the tool
	Reply *Reply `json:"reply,omitempty"`
	Fault *Fault `json:"fault,omitempty"`

	Tool      string          `json:"tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Text      string          `json:"text,omitempty"` // the tool's result
	IsError   bool            `json:"is_error,omitempty"`

	// LeftOut, on the last line only, counts the lines that did not fit.
	LeftOut int `json:"left_out,omitempty"`
}
