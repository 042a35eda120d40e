// Package dialect is the contract between the gate and the HTTP protocols that
// agents speak. Each dialect is a package below this one; package gate lists
// them in Dialects. A Dialect has three tasks: it names its routes, a Decoder
// converts a request to a canonical call, and an Encoding writes the answer.
// It keeps no conversations: package history remembers earlier requests and
// calls a Decoder for new parts only.
//
// A canonical call has messages and tools in the form of OpenAI chat. Package
// canonical writes and reads that form.
package dialect

import (
	"encoding/json"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// Dialect is an HTTP protocol that agents speak.
type Dialect interface {
	Name() string
	// Routes lists the routes of model calls as patterns of http.ServeMux: a
	// method and a path, which may end in one variable part.
	Routes() []string
	// Decoder returns the decoder of one session.
	Decoder() Decoder
	// Fail returns the body of a refusal.
	Fail(f Refusal) []byte
	// Models returns the body of the list of models.
	Models(name string) []byte
	// Model returns the body that describes one model.
	Model(name string) []byte
	// ModelsRoutes lists the patterns of the list of models; the gate adds a
	// route with a model's name for each.
	ModelsRoutes() []string
	// Sent reports whether a client of this dialect sent a request on a route
	// of models that several dialects share.
	Sent(r *http.Request) bool
}

// Refuser is a Dialect with further routes, which are always refused.
type Refuser interface {
	Refused() (routes []string, f Refusal)
}

// Decoder has the functions that convert the requests of one session, one
// request at a time. A request is a JSON object with a conversation, which is a
// list of objects, its items. Functions are called in the order of the fields.
// Their errors go to the agent, so they name the field and do not repeat more
// than 80 bytes of a value.
//
// Agents send their whole conversation with every call. Messages is called for
// items that earlier requests did not have, Member and Tools if these parts have
// changed. So their results depend on nothing but their arguments, and on
// the answers that the session remembers. Ids and arguments of tool calls are the
// agent's: package history replaces them by the model's own.
//
// A Decoder keeps no Parts after the request: they hold its whole body. JSON values
// that a function gets are parts of the body: its results must be
// copies, as the functions of packages canonical and rawjson return, except for
// Members.Params, which package history copies.
type Decoder struct {
	// Kind is the kind of a request, for errors: "chat completion".
	Kind string
	// Conversation names the member of a request that has the conversation.
	Conversation string
	// Begin is called first for each request; nil: not at all. If it returns a
	// request, that request is the result, and no other function is called.
	Begin func(r *http.Request, p Parts) (*Request, error)
	// Messages converts the item i, or several items from i on, to canonical
	// messages. It may read earlier items too. Nil: items are canonical
	// messages, and tools canonical tools.
	Messages func(p Parts, i int) (Group, error)
	// Member reads a member of the request into m. It is not called for
	// "tools", nor for a conversation that is a list.
	Member func(m *Members, name string, value jsontext.Value) error
	// Tools converts the member "tools", which is not null, to canonical tools.
	Tools func(value jsontext.Value) (Tools, error)
	// Request completes a request with its Encoding.
	Request func(r *http.Request, c Converted) Request
}

// Parts are the parts of a request's body.
type Parts interface {
	// Len returns the number of items of the conversation.
	Len() int
	// Item returns an item of the conversation.
	Item(i int) jsontext.Value
	// Member returns a member of the request by name; nil if it is absent.
	Member(name string) jsontext.Value
}

// Group is one item, or several that follow each other, as canonical messages.
type Group struct {
	Messages []json.RawMessage
	End      int // number of the item after the last one; 0: the group is one item
	// Open: a later item may still join the group. The item at End was read and
	// does not belong to it yet, or it is not there.
	Open bool
}

// Members has the members of a request other than its conversation and tools.
type Members struct {
	Model  string
	Stream bool
	// Params are the canonical parameters. Values may be parts of the body.
	Params schema.SortedMap[json.RawMessage]
	// Options is for the dialect's own use in Converted: members that change the form
	// of the answer.
	Options any
	// First has canonical messages in front of the conversation, such as the
	// system prompt.
	First []json.RawMessage
	// Last is a canonical message behind the conversation; nil: none.
	Last json.RawMessage
	// Previous is the id of an earlier answer that the request continues, see
	// Answers; empty: none.
	Previous string
}

// Tools has the tools of a request.
type Tools struct {
	List json.RawMessage // canonical tools; nil: none
	// Names is for the dialect's own use in Converted: the names of tools that a
	// canonical call cannot have.
	Names any
}

// Converted has the converted parts of a request.
type Converted struct {
	Call  schema.Call // it has model, stream, params, tools and messages
	Names any         // Tools.Names
	// Options is Members.Options.
	Options any
	// Conversation has the messages of the call without Members.First.
	Conversation []json.RawMessage
	// Answers keeps conversations for Members.Previous.
	Answers Answers
}

// Answers keeps the conversations of answers, so that later requests can name
// an answer in Members.Previous instead of sending its conversation.
type Answers interface {
	Keep(id string, conversation []json.RawMessage, answer json.RawMessage)
}

// Request is a decoded request.
type Request struct {
	// Call has model, messages, tools, params and stream.
	Call schema.Call
	// Encoding writes the answer.
	Encoding Encoding
	// Count is set if the request only asks for its number of tokens. It
	// returns the body of the answer.
	Count func(tokens int64) []byte
}

// Encoding writes the answer to one request.
type Encoding interface {
	// Encode returns the body of a whole answer. The reply is in the form for the agent:
	// its calls have ids of their own, its finish reason agrees with them.
	Encode(m Meta, r *schema.Reply) ([]byte, error)
	// Stream returns the writer of one streamed answer.
	Stream(m Meta) Stream
}

// Stream converts the parts of one answer to the bytes of an event stream.
type Stream interface {
	// ContentType returns the media type of the stream.
	ContentType() string
	// KeepAlive returns an empty event. Clients count it as activity.
	KeepAlive() []byte
	// Delta returns the event of one piece of the answer, which has no tool calls.
	Delta(d *schema.Delta) ([]byte, error)
	// Final returns the end of the stream with the tool calls; without a delta
	// before, it has the whole answer.
	Final(r *schema.Reply) ([]byte, error)
	// Fail returns an event that ends the stream with an error.
	Fail(f Refusal) []byte
}

// Meta has the fields of an answer that do not come from the reply.
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

// EventStream is the media type of server-sent events.
const EventStream = "text/event-stream"

// AppendEvent appends a server-sent event.
func AppendEvent(b []byte, kind string, data []byte) []byte {
	b = append(b, "event: "...)
	b = append(b, kind...)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}
