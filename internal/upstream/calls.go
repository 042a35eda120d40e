package upstream

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/turngate/turngate/internal/rawjson"
)

// joinedCalls are the tool calls of a stream so far.
type joinedCalls struct {
	all  []*joinedCall
	last *joinedCall // the newest piece's; nil: none
}

// joinedCall is the part of a tool call that has arrived.
type joinedCall struct {
	place int // its own index
	index int // the upstream's index; several calls may have the same

	ID       string `json:"id,omitempty"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// callPiece is a piece of a tool call. Some upstreams leave out the index or repeat
// id and name in every piece.
type callPiece struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string    `json:"name"`
		Arguments arguments `json:"arguments"`
	} `json:"function"`
}

// arguments is the text of arguments, which some upstreams send as an object.
type arguments string

// UnmarshalJSON implements json.Unmarshaler.
func (a *arguments) UnmarshalJSON(data []byte) error {
	if data[0] == '{' {
		*a = arguments(data)
		return nil
	}
	var text string
	err := json.Unmarshal(data, &text)
	*a = arguments(text)
	return rawjson.Plain(err)
}

// maxCalls bounds the tool calls of one answer.
const maxCalls = 1024

// add joins the pieces of a chunk. It returns them in the form that gates read: each
// call has an index of its own.
func (j *joinedCalls) add(value json.RawMessage) (json.RawMessage, error) {
	var pieces []callPiece
	if err := json.Unmarshal(value, &pieces); err != nil {
		return nil, err
	}
	out := make([]map[string]any, 0, len(pieces))
	for i := range pieces {
		p := &pieces[i]
		c, err := j.of(p)
		if err != nil {
			return nil, err
		}
		j.last = c
		c.ID, c.Type = cmp.Or(c.ID, p.ID), cmp.Or(p.Type, c.Type)
		if p.Function.Name != c.Function.Name { // otherwise it is repeated
			c.Function.Name += p.Function.Name
		}
		c.Function.Arguments += string(p.Function.Arguments)
		function := map[string]string{"arguments": string(p.Function.Arguments)}
		piece := map[string]any{"index": c.place, "function": function}
		if p.Function.Name != "" {
			function["name"], piece["type"] = p.Function.Name, c.Type
		}
		if p.ID != "" {
			piece["id"] = c.ID
		}
		out = append(out, piece)
	}
	return json.Marshal(out)
}

// of returns the call of a piece. A piece with a name and an id that its index does not
// have yet begins a call: some upstreams give the same index to all of them.
func (j *joinedCalls) of(p *callPiece) (*joinedCall, error) {
	known := j.last
	if p.Index != nil {
		if *p.Index < 0 {
			return nil, fmt.Errorf("index %d is below 0", *p.Index)
		}
		known = nil
		for _, c := range slices.Backward(j.all) {
			if c.index == *p.Index {
				known = c
				break
			}
		}
	}
	begins := p.Function.Name != "" && known != nil && (p.ID != "" && known.ID != "" && p.ID != known.ID || p.Index == nil && p.ID == "")
	if known != nil && !begins {
		return known, nil
	}
	if len(j.all) == maxCalls {
		return nil, fmt.Errorf("more than %d calls", maxCalls)
	}
	c := &joinedCall{Type: "function"}
	if p.Index != nil {
		c.index = *p.Index
	} else if j.last != nil {
		c.index = j.last.index + 1
	}
	c.place = c.index
	for slices.ContainsFunc(j.all, func(o *joinedCall) bool { return o.place == c.place }) {
		c.place++
	}
	if c.place > maxIndex {
		return nil, fmt.Errorf("index %d is above %d", c.place, maxIndex)
	}
	j.all = append(j.all, c)
	return c, nil
}

// maxIndex is the largest index that gates read.
const maxIndex = 99_999

// list returns the calls in the order of their indices.
func (j *joinedCalls) list() []*joinedCall {
	return slices.SortedFunc(slices.Values(j.all), func(a, b *joinedCall) int { return cmp.Compare(a.place, b.place) })
}

// withTextArguments returns a message with the arguments of its calls as texts:
// some upstreams send them as objects, and null for none.
func withTextArguments(message json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	var calls []map[string]json.RawMessage
	if json.Unmarshal(message, &members) != nil || json.Unmarshal(members["tool_calls"], &calls) != nil {
		return message // CheckAnswer names the fault
	}
	changed := false
	for _, call := range calls {
		var function map[string]json.RawMessage
		if json.Unmarshal(call["function"], &function) != nil || len(function["arguments"]) == 0 {
			continue
		}
		text := string(function["arguments"])
		switch text[0] {
		case '{':
		case 'n':
			text = "{}"
		default:
			continue
		}
		function["arguments"], changed = encoded(text), true
		call["function"] = encoded(function)
	}
	if !changed {
		return message
	}
	members["tool_calls"] = encoded(calls)
	return encoded(members)
}

// encoded encodes a text, or maps and lists of JSON, which cannot fail.
func encoded(v any) json.RawMessage {
	data, _ := json.Marshal(v)
	return data
}
