// Package gate is the HTTP face that an agent takes for its model server. A
// Session serves one execution of one rollout: it checks the key, decodes a
// dialect to the canonical call, asks a Model, and writes the answer back in
// the dialect. What a call survives (a trainer that restarts, a client that
// asks again) is decided here and in the Model; the agent sees only time.
package gate

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/turngate/turngate/schema"
)

// Model answers calls. frames hears of what happens before the answer, in
// order; its error ends the call. A *schema.Fault as error carries the HTTP
// status for the agent; anything else reads as an internal error. A fault
// with the code schema.CodeNoTrainer ends the session.
type Model interface {
	Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error)
}

// Dialect is one HTTP protocol that agents speak. A new one is a file here, a
// line in Dialects, and recordings for gatetest.
type Dialect interface {
	Name() string
	// Routes are those of its model calls, in the form of http.ServeMux: a
	// method, and a path that may end in one variable part.
	Routes() []string
	// Decoder gives the decoder of one session, which may remember what it has
	// seen: agents send their whole conversation with every call.
	Decoder(m *Memory) Decoder
	// Fail gives the body of a refusal.
	Fail(f Refusal) []byte
	// Models gives the body of the list of models.
	Models(name string) []byte
	// ModelsRoutes are the patterns of that list.
	ModelsRoutes() []string
	// Sent reports whether a request on a route that several dialects have
	// comes from a client of this one.
	Sent(r *http.Request) bool
}

// Decoder splits requests into the canonical form. It is safe for concurrent
// use.
type Decoder interface {
	// Read reads a body of so many bytes. Its errors are the reader's.
	Read(r io.Reader, size int) (Body, error)
	// Decode takes a body apart that this decoder read, once. Its errors are
	// for the agent.
	Decode(r *http.Request, body Body) (Request, error)
	// Close drops what it remembers.
	Close()
}

// Request is what a dialect read.
type Request struct {
	// Call has model, messages, tools, params and stream. A message that the one
	// before had, too, is the same memory.
	Call schema.Call
	// Encoding writes the answer.
	Encoding Encoding
	// Kept is how many bytes of bodies the decoder keeps for the next request.
	Kept  int64
	from  forgetter // keeps them
	print uint64    // of the body: equal ones have the same
	// fresh are the hashes of the call's last messages, those that were hashed
	// while they were read.
	fresh []schema.Hash
	// Count, if set, says that the agent only wants to know how many tokens
	// this is, and writes the answer to that.
	Count func(tokens int64) []byte
}

// Encoding writes the answer to one request.
type Encoding interface {
	// Encode gives the body of a whole answer.
	Encode(m Meta, r *schema.Reply) ([]byte, error)
	// Stream gives the writer of one streamed answer.
	Stream(m Meta) Stream
}

// Stream turns the parts of one answer into bytes of an event stream.
type Stream interface {
	// ContentType is what the stream is.
	ContentType() string
	// KeepAlive is an event that clients count as activity and that means
	// nothing.
	KeepAlive() []byte
	// Delta is one piece of the answer.
	Delta(d *schema.Delta) ([]byte, error)
	// Final ends the stream; if no delta was sent it carries the whole answer.
	Final(r *schema.Reply) ([]byte, error)
	// Fail ends the stream with an error.
	Fail(f Refusal) []byte
}

// Meta is what an answer repeats of its call.
type Meta struct {
	ID      string // of the answer, without the prefix that a dialect gives it
	Model   string
	Created int64 // Unix seconds
}

// Refusal is an error as the agent reads it.
type Refusal struct {
	Status  int
	Code    string
	Message string
}

// Dialects lists every dialect.
func Dialects() []Dialect { return []Dialect{Chat{}, Responses{}, Messages{}, Gemini{}} }

const eventStream = "text/event-stream"

// Observer hears what happens in a session, for events and the transcript.
// Its methods must not block.
type Observer interface {
	CallBegan(number int, c *schema.Call)
	CallDelta(number int, d *schema.Delta)
	CallEnded(number int, e CallEnd)
	ToolEnded(e ToolEnd)
}

// CallEnd tells how a call came out.
type CallEnd struct {
	Gen   string
	Took  time.Duration
	Reply *schema.Reply // nil if it failed
	Fault *schema.Fault
}

// Timing are the durations of a session's rules; the zero value means the
// protocol's own.
type Timing struct {
	Headers   time.Duration // how long a status may wait for the first sign: 10 s
	KeepAlive time.Duration // between signs to the agent: 3 s
	Orphan    time.Duration // how long an abandoned call is kept: 90 s
	Equal     time.Duration // how long an equal request waits for an open one: 1 s
	Retry     time.Duration // the same when it says that it is a retry: 10 s
	Cap       time.Duration // from the first refused call over a cap to the end: 10 s
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
	// BodyLimit is the largest request body in bytes. It is above what one
	// NATS message takes, so that the refusal can say what would fit.
	BodyLimit = 16 << 20
	// maxOpen is how many requests may be open at once, waiting ones included.
	maxOpen = 64
	// defaultHeld is how many bytes of bodies a session keeps at once.
	defaultHeld = 256 << 20
	// defaultMemory is for a session that shares no Memory with others.
	defaultMemory = 256 << 20
)
