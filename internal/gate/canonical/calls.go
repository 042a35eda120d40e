package canonical

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// Calls remembers the tool calls of an attempt. Engines give the same id to calls of
// several turns, or ids that agents cannot use; agents parse arguments and write
// them again. So the agent gets an id that is valid in every dialect and that no
// other call has, see Deliver. When the call comes back, the conversation has the
// model's own id again, its own arguments if they mean the same, and its reasoning if
// the answer's reply asked for it, see Own.
//
// It is safe for concurrent use.
type Calls struct {
	mu      sync.Mutex
	known   map[string]*knownCall // by the id that the agent has
	order   []string              // the ids, oldest first
	bare    int                   // the first ones of order have no arguments
	ids     int                   // bytes of the ids
	texts   int                   // bytes of the arguments
	renamed bool                  // an id differs from the model's
	thought reasonings            // of answers whose reply asked for it
}

// knownCall is a call of the model, or of the agent itself.
type knownCall struct {
	at        place  // zero: it was in a request, and no answer had it
	own       string // the model's id; empty: the model gave none
	arguments string // the model's text
	has       bool   // arguments is kept
}

// place names a tool call: by the number of the model call, and by the place in
// its answer.
type place struct{ call, index int }

// Bounds of the memory, in bytes. The arguments of the oldest calls are forgotten
// first, so that long arguments do not drive out ids.
const (
	maxIDs       = 4 << 20
	maxArguments = 4 << 20
	perCall      = 192 // in addition to the texts
)

// maxID is the longest id that agents get.
const maxID = 64

// Deliver returns an answer in the form for the agent, and its tool calls: each has an
// id and a type. number is the number of the model call. The same answer to the
// same call gets the same ids. With keepReasoning its reasoning comes back with its calls.
func (c *Calls) Deliver(number int, message jsontext.Value, keepReasoning bool) (jsontext.Value, []ToolCall, error) {
	if !bytes.Contains(message, []byte(`"tool_calls"`)) {
		return message, nil, nil
	}
	answer, err := ReadAnswer(message)
	if err != nil {
		return nil, nil, err
	}
	calls := answer.ToolCalls
	change := changes{calls: make([]changedCall, len(calls)), drop: len(calls) == 0}
	var thought reasoning
	if keepReasoning && len(calls) > 0 {
		_ = rawjson.EachMember(message, func(name string, v jsontext.Value) error { // ReadAnswer has read it
			thought.add(name, v)
			return nil
		})
	}
	c.mu.Lock()
	c.thought.note(number, thought)
	for i := range calls {
		one := &calls[i]
		id := c.note(place{number, i}, one)
		change.any = change.any || one.ID != id || !one.typed
		one.ID, change.calls[i].id = id, id
		if change.calls[i].kind = "function"; one.Custom() {
			change.calls[i].kind = "custom"
		}
	}
	c.mu.Unlock()
	return change.apply(message), calls, nil
}

// note remembers a call of the model and returns its id for the agent. The
// caller holds the lock.
func (c *Calls) note(at place, call *ToolCall) string {
	id := call.ID
	for n := 0; !usable(id) || !c.free(id, at); n++ {
		if id = fmt.Sprintf("tool_%d_%d", at.call, at.index); n > 0 {
			id = fmt.Sprintf("%s_%d", id, n)
		}
	}
	c.renamed = c.renamed || id != call.ID && call.ID != ""
	k := c.add(id, at, call.ID)
	if in := call.Input(); !k.has || k.arguments != in {
		c.texts += len(in) - len(k.arguments)
		k.arguments, k.has = in, true
		c.trim()
	}
	return id
}

// free reports whether no other call has the id. The caller holds the lock.
func (c *Calls) free(id string, at place) bool {
	k := c.known[id]
	return k == nil || k.at == at
}

// add returns the call with this id, and adds it if need be. The caller holds the lock.
func (c *Calls) add(id string, at place, own string) *knownCall {
	k := c.known[id]
	if k == nil {
		if c.known == nil {
			c.known = map[string]*knownCall{}
		}
		k = &knownCall{at: at, own: own}
		c.known[id] = k
		c.order = append(c.order, id)
		c.ids += perCall + 2*len(id) + len(own)
	} else if k.own != own { // another generation of the same model call
		c.ids += len(own) - len(k.own)
		k.own = own
	}
	return k
}

// trim forgets the oldest calls beyond the bounds. The caller holds the lock.
func (c *Calls) trim() {
	for c.texts > maxArguments && c.bare < len(c.order) {
		k := c.known[c.order[c.bare]]
		c.bare++
		c.texts -= len(k.arguments)
		k.arguments, k.has = "", false
	}
	for c.ids > maxIDs && len(c.order) > 0 {
		id := c.order[0]
		k := c.known[id]
		c.order, c.bare = c.order[1:], max(c.bare-1, 0)
		c.ids -= perCall + 2*len(id) + len(k.own)
		c.texts -= len(k.arguments)
		delete(c.known, id)
	}
}

// usable reports whether every dialect can carry the id.
func usable(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return id != "" && len(id) <= maxID
}

// Own returns a message of a request with the model's own ids, arguments and reasoning.
// If there is nothing to change it returns the message itself. A message is converted
// in the same way each time, as long as its calls are remembered.
func (c *Calls) Own(message json.RawMessage) json.RawMessage {
	if !bytes.Contains(message, []byte(`"tool_call`)) || !c.concerns(message) {
		return message
	}
	var calls []ToolCall
	var change changes
	var thought reasoning
	err := rawjson.EachMember(message, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "tool_calls":
			return rawjson.EachElement(v, func(v jsontext.Value) error {
				var one ToolCall
				err := one.read(v)
				calls = append(calls, one)
				return err
			})
		case "tool_call_id":
			change.result, err = rawjson.Unquote(v)
		default:
			thought.add(name, v)
		}
		return err
	})
	if err != nil || len(calls) == 0 && change.result == "" {
		return message // in no form that a model's call has
	}
	c.mu.Lock()
	if k := c.known[change.result]; k != nil && k.own != "" && k.own != change.result {
		change.result, change.any = k.own, true
	}
	change.calls = make([]changedCall, len(calls))
	for i := range calls {
		change.restore(i, &calls[i], c)
	}
	if i := slices.IndexFunc(calls, func(one ToolCall) bool { return c.calledBy(one.ID) > 0 }); i >= 0 {
		change.reasoning = c.thought.own(c.calledBy(calls[i].ID), thought)
		change.any = change.any || change.reasoning != nil
	}
	c.trim()
	c.mu.Unlock()
	return json.RawMessage(change.apply(jsontext.Value(message)))
}

// concerns reports whether Own may change the message, or has to remember a call
// in it.
func (c *Calls) concerns(message []byte) bool {
	if bytes.Contains(message, []byte(`"tool_calls"`)) {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.renamed
}

// restore finds the model's own form of a call in a request. A call that no answer
// had keeps its id to itself. The caller holds the lock.
func (x *changes) restore(i int, call *ToolCall, c *Calls) {
	to := &x.calls[i]
	to.id = call.ID
	k := c.known[call.ID]
	if k == nil {
		if usable(call.ID) {
			c.add(call.ID, place{}, call.ID)
		}
		return
	}
	if k.own != "" && k.own != call.ID {
		to.id, x.any = k.own, true
	}
	if in := call.Input(); k.has && k.arguments != in && !call.Custom() && rawjson.Same(ObjectOr(k.arguments), ObjectOr(in)) {
		own := k.arguments
		to.arguments, x.any = &own, true
	}
}

// calledBy returns the number of the model call whose answer has the call with this id of
// the agent; 0: no answer had it. The caller holds the lock.
func (c *Calls) calledBy(id string) int {
	if k := c.known[id]; k != nil {
		return k.at.call
	}
	return 0
}

// changes are the changes to one message.
type changes struct {
	any       bool // calls, result or reasoning differ from the message
	calls     []changedCall
	drop      bool      // leave tool_calls out
	result    string    // tool_call_id
	reasoning reasoning // nil: as it is
}

type changedCall struct {
	id, kind  string  // kind is empty: as it is
	arguments *string // nil: as they are
}

// apply returns the changed message; message has been read already, so it is an
// object.
func (x *changes) apply(message jsontext.Value) jsontext.Value {
	if !x.any && !x.drop {
		return message
	}
	o := rawjson.NewObject()
	_ = rawjson.EachMember(message, func(name string, v jsontext.Value) error {
		switch {
		case name == "tool_calls" && x.drop:
		case name == "tool_calls":
			o.Raw(name, x.list(v))
		case name == "tool_call_id":
			o.Str(name, x.result)
		case x.reasoning != nil && isReasoning(name):
		default:
			o.Raw(name, v)
		}
		return nil
	})
	for _, m := range x.reasoning {
		o.Raw(m.name, m.value)
	}
	return o.Done()
}

func (x *changes) list(v jsontext.Value) []byte {
	calls := make([]jsontext.Value, 0, len(x.calls))
	_ = rawjson.EachElement(v, func(v jsontext.Value) error {
		to := &x.calls[len(calls)]
		o := rawjson.NewObject().Str("id", to.id)
		if to.kind != "" {
			o.Str("type", to.kind)
		}
		err := rawjson.EachMember(v, func(name string, v jsontext.Value) error {
			switch {
			case name == "id", name == "type" && to.kind != "":
			case name == "function" && to.arguments != nil:
				o.Raw(name, withArguments(v, *to.arguments))
			default:
				o.Raw(name, v)
			}
			return nil
		})
		calls = append(calls, o.Done())
		return err
	})
	return rawjson.List(calls)
}

func withArguments(function jsontext.Value, arguments string) []byte {
	o := rawjson.NewObject()
	_ = rawjson.EachMember(function, func(name string, v jsontext.Value) error {
		if name == "arguments" {
			v = rawjson.Quote(arguments)
		}
		o.Raw(name, v)
		return nil
	})
	return o.Done()
}
