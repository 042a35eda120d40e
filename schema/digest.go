package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"hash"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
)

// Hash is the sha256 of a piece of a call in its normal form: RFC 8785
// canonical JSON (https://www.rfc-editor.org/rfc/rfc8785) after "cache_control"
// is dropped, which clients move from message to message, and a content that is
// a single text part is written as a string.
type Hash [sha256.Size]byte

// Hashes are those of a whole call. What a call shares with another has the
// same hash, so only what is new needs to be hashed.
type Hashes struct {
	Messages []Hash
	Tools    Hash
	Params   Hash

	sum    hash.Hash // of the first summed messages; nil: others go on with it, or it is begun anew
	summed int
	grown  atomic.Bool // others go on behind these in the same memory
}

// Based are the hashes of a call's first messages, to be gone on from. The
// first time that all of them are, no copy is made.
func (h *Hashes) Based(keep int) *Hashes {
	if keep < len(h.Messages) || !h.grown.CompareAndSwap(false, true) {
		return &Hashes{Messages: append(make([]Hash, 0, keep+keep/4+8), h.Messages[:keep]...)}
	}
	based := &Hashes{Messages: h.Messages, sum: h.sum, summed: h.summed}
	h.sum, h.summed = nil, 0
	return based
}

// Hasher hashes the pieces of calls. Its zero value is ready; it keeps the
// memory that this takes, so use one for many, but not at the same time.
type Hasher struct{ normal []byte }

// Message hashes one message.
func (s *Hasher) Message(raw json.RawMessage) Hash {
	return s.hash(raw, inMessage, func() jsontext.Value { return normalMessage(jsontext.Value(raw)) })
}

// Next reads a value as PlainReader.Value does, and hashes it as a message.
func (s *Hasher) Next(r *PlainReader) (from int, h Hash, ok bool) {
	r.space()
	from = r.at
	if s.normal, ok = r.value(s.normal[:0], inMessage, 0); !ok {
		return from, h, false
	}
	return from, sha256.Sum256(s.normal), true
}

// Tools hashes a list of tools; none is an empty list.
func (s *Hasher) Tools(raw json.RawMessage) Hash {
	if len(raw) == 0 {
		raw = json.RawMessage(noTools)
	}
	return s.hash(raw, inTools, func() jsontext.Value {
		v := jsontext.Value(raw)
		if bytes.Contains(v, []byte(`"cache_control"`)) {
			v = eachOf(v, func(tool jsontext.Value) jsontext.Value { return without(tool, nil) })
		}
		return v
	})
}

// Params hashes parameters as one object.
func (s *Hasher) Params(params SortedMap[json.RawMessage]) Hash {
	object := []byte{'{'}
	for name, value := range params {
		if len(object) > 1 {
			object = append(object, ',')
		}
		object, _ = jsontext.AppendQuote(object, name)
		object = append(append(object, ':'), value...)
	}
	object = append(object, '}')
	return s.hash(object, asIs, func() jsontext.Value { return object })
}

// Digest sums a call up: the sha256 of the hashes of its messages, then of its
// tools, then of its parameters. Hashes that are based on these go on from its
// sum, so a call costs the same however long its conversation is.
func (h *Hashes) Digest() []byte {
	sum := h.sum
	if h.sum = nil; sum == nil {
		sum, h.summed = sha256.New(), 0
	}
	for ; h.summed < len(h.Messages); h.summed++ {
		sum.Write(h.Messages[h.summed][:])
	}
	if c, ok := sum.(hash.Cloner); ok {
		if after, err := c.Clone(); err == nil {
			h.sum = after
		}
	}
	sum.Write(h.Tools[:])
	sum.Write(h.Params[:])
	return sum.Sum(make([]byte, 0, sha256.Size))
}

// HashesOf hashes the whole of a call.
func (c *Call) HashesOf() *Hashes {
	var s Hasher
	h := &Hashes{Messages: make([]Hash, len(c.Messages)), Tools: s.Tools(c.Tools), Params: s.Params(c.Params)}
	for i, m := range c.Messages {
		h.Messages[i] = s.Message(m)
	}
	return h
}

// noTools is how a call says that it has none where the one it is based on
// has.
const noTools = "[]"

// hash hashes the normal form of plain JSON, and otherwise what long gives.
func (s *Hasher) hash(v []byte, r rules, long func() jsontext.Value) Hash {
	if need := 2*len(v) + 16; cap(s.normal) < need { // an object is written twice when its members are to be sorted
		s.normal = make([]byte, 0, need+need/2)
	}
	normal, ok := appendNormal(s.normal[:0], v, r)
	if !ok {
		return hashOf(long())
	}
	return sha256.Sum256(normal)
}

// hashOf hashes canonical JSON; what is no JSON is hashed as it is.
func hashOf(v jsontext.Value) Hash {
	c := v.Clone()
	if err := c.Canonicalize(); err != nil {
		return sha256.Sum256(v)
	}
	return sha256.Sum256(c)
}

// normalMessage drops and simplifies what the normal form has not.
func normalMessage(v jsontext.Value) jsontext.Value {
	if !bytes.Contains(v, []byte(`"cache_control"`)) && !bytes.ContainsRune(v, '[') {
		return v
	}
	return without(v, func(name string, value jsontext.Value) jsontext.Value {
		if name != "content" || value.Kind() != '[' {
			return value
		}
		parts := 0
		value = eachOf(value, func(part jsontext.Value) jsontext.Value {
			parts++
			return without(part, nil)
		})
		if parts == 1 {
			if text := onlyText(value); text != nil {
				return text
			}
		}
		return value
	})
}

// onlyText is the text of a list with one plain text part; nil if it is not
// that.
func onlyText(list jsontext.Value) jsontext.Value {
	var text jsontext.Value
	members, isText := 0, false
	eachOf(list, func(part jsontext.Value) jsontext.Value {
		return without(part, func(name string, value jsontext.Value) jsontext.Value {
			members++
			switch {
			case name == "type":
				isText = string(value) == `"text"`
			case name == "text" && value.Kind() == '"':
				text = value
			}
			return value
		})
	})
	if members == 2 && isText {
		return text
	}
	return nil
}

// without copies an object, drops cache_control, and changes values. What is
// no object stays as it is.
func without(v jsontext.Value, change func(name string, value jsontext.Value) jsontext.Value) jsontext.Value {
	if v.Kind() != '{' {
		return v
	}
	out := make(jsontext.Value, 1, len(v)+1)
	out[0] = '{'
	err := EachMember(v, func(name string, value jsontext.Value) error {
		if name == "cache_control" {
			return nil
		}
		if change != nil {
			value = change(name, value)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out, _ = jsontext.AppendQuote(out, name)
		out = append(append(out, ':'), value...)
		return nil
	})
	if err != nil {
		return v
	}
	return append(out, '}')
}

// eachOf copies an array and changes its elements. What is no array stays as
// it is.
func eachOf(v jsontext.Value, change func(jsontext.Value) jsontext.Value) jsontext.Value {
	if v.Kind() != '[' {
		return v
	}
	out := jsontext.Value{'['}
	err := EachElement(v, func(value jsontext.Value) error {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, change(value)...)
		return nil
	})
	if err != nil {
		return v
	}
	return append(out, ']')
}
