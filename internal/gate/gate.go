// Package gate is the HTTP server that an agent uses as its model server. A
// Session serves one execution of one rollout: it checks the key, decodes a
// request of a dialect to the canonical call, asks a Model, and writes the
// answer in the dialect. The gate and the Model carry a call over restarts of
// the trainer and retries of the client; the agent only waits longer.
//
// Package dialect has the contract of the dialects, package history the memory
// of conversations, package canonical the form of calls.
package gate

import (
	"context"
	"time"

	"github.com/turngate/turngate/schema"
)

// Model answers calls. Complete passes all frames of the answer to frames, in order. The
// last one is a final, which has the whole answer. An error of frames ends the call,
// except a *schema.Fault with schema.CodeBadAnswer: it refuses a delta or a final, and
// the model answers again. If Complete returns a *schema.Fault, the agent gets the
// fault's HTTP status; any other error is an internal error to the agent. A fault with
// the code schema.CodeNoTrainer ends the session.
type Model interface {
	Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) error
}

// Observer receives the events of a session, for the event stream and the
// transcript. Its methods must not block.
type Observer interface {
	CallBegan(number int, c *schema.Call)
	CallDelta(number int, d *schema.Delta)
	// CallWaits is called when a call begins to wait, when the reason changes,
	// every 30 s, and when the wait ends.
	CallWaits(w schema.WaitEvent)
	CallEnded(number int, e CallEnd)
	ToolEnded(e ToolEnd)
}

// CallEnd describes the end of a call.
type CallEnd struct {
	Gen   string
	Took  time.Duration
	Reply *schema.Reply // the model's own reply; nil if the call failed
	Fault *schema.Fault
	Note  string // differences between Reply and the answer that the agent reads; empty: none
}

// Timing has the durations of a session's rules. Zero means the protocol's
// default, which each field names.
type Timing struct {
	Headers   time.Duration // until the headers are sent if there is no answer yet: 10 s
	KeepAlive time.Duration // between keep-alive events to the agent: 3 s
	Orphan    time.Duration // until a call without a client is dropped: 90 s
	Equal     time.Duration // wait of a request for an equal one that is open: 1 s
	Retry     time.Duration // the same wait of a request with a header of a retry: 10 s
	Cap       time.Duration // between the first call above a cap and the session's end: 10 s
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		v    *time.Duration
		want time.Duration
	}{
		{&t.Headers, 10 * time.Second}, {&t.KeepAlive, 3 * time.Second}, {&t.Orphan, 90 * time.Second},
		{&t.Equal, time.Second}, {&t.Retry, 10 * time.Second}, {&t.Cap, 10 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.want
		}
	}
	return t
}

// Bounds of a session that no request changes.
const (
	// maxEdits is the largest number of names of refused parameters that
	// a session keeps.
	maxEdits = 64
	// maxOpen is the largest number of open requests, waiting ones included.
	maxOpen = 64
	// defaultRetained is the bound of Config.MaxRetained when it is not set, in bytes.
	defaultRetained = 256 << 20
	// defaultMemory is the bound in bytes for a session without a shared
	// Memory.
	defaultMemory = 256 << 20
)
