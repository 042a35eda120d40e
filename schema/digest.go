package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"hash"
	"slices"
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

	sum    hash.Cloner // of the first summed messages
	summed int
	grown  atomic.Bool // others go on behind these in the same memory
}

// Based are the hashes of a call's first messages, to be gone on from. The
// first time that all of them are, no copy is made.
func (h *Hashes) Based(keep int) *Hashes {
	if keep < len(h.Messages) {
		return &Hashes{Messages: append(make([]Hash, 0, keep+keep/4+8), h.Messages[:keep]...)}
	}
	based := &Hashes{Messages: h.Messages, sum: h.sum, summed: h.summed}
	if !h.grown.CompareAndSwap(false, true) {
		based.Messages = slices.Clip(h.Messages)
	}
	return based
}

// HashMessage hashes one message.
func HashMessage(raw json.RawMessage) Hash {
	return hashPlain(raw, inMessage, func() jsontext.Value { return normalMessage(jsontext.Value(raw)) })
}

// HashTools hashes a list of tools; none is an empty list.
func HashTools(raw json.RawMessage) Hash {
	if len(raw) == 0 {
		raw = json.RawMessage(noTools)
	}
	return hashPlain(raw, inTools, func() jsontext.Value {
		v := jsontext.Value(raw)
		if bytes.Contains(v, []byte(`"cache_control"`)) {
			v = eachOf(v, func(tool jsontext.Value) jsontext.Value { return without(tool, nil) })
		}
		return v
	})
}

// HashParams hashes parameters as one object.
func HashParams(params SortedMap[json.RawMessage]) Hash {
	object := []byte{'{'}
	for name, value := range params {
		if len(object) > 1 {
			object = append(object, ',')
		}
		object, _ = jsontext.AppendQuote(object, name)
		object = append(append(object, ':'), value...)
	}
	object = append(object, '}')
	return hashPlain(object, asIs, func() jsontext.Value { return object })
}

// Digest sums a call up: the sha256 of the hashes of its messages, then of its
// tools, then of its parameters. Hashes that are based on these go on from its
// sum, so a call costs the same however long its conversation is.
func (h *Hashes) Digest() []byte {
	sum := sha256.New()
	if h.sum != nil {
		if c, err := h.sum.Clone(); err == nil {
			sum = c
		} else {
			h.summed = 0
		}
	}
	for i := h.summed; i < len(h.Messages); i++ {
		sum.Write(h.Messages[i][:])
	}
	if c, ok := sum.(hash.Cloner); ok {
		if after, err := c.Clone(); err == nil {
			h.sum, h.summed = after, len(h.Messages)
		}
	}
	sum.Write(h.Tools[:])
	sum.Write(h.Params[:])
	return sum.Sum(make([]byte, 0, sha256.Size))
}

// HashesOf hashes the whole of a call.
func (c *Call) HashesOf() *Hashes {
	h := &Hashes{Messages: make([]Hash, len(c.Messages)), Tools: HashTools(c.Tools), Params: HashParams(c.Params)}
	for i, m := range c.Messages {
		h.Messages[i] = HashMessage(m)
	}
	return h
}

// noTools is how a call says that it has none where the one it is based on
// has.
const noTools = "[]"

// hashPlain hashes the normal form of plain JSON, and otherwise what long gives.
func hashPlain(v []byte, r rules, long func() jsontext.Value) Hash {
	if normal, ok := appendNormal(make([]byte, 0, 2*len(v)+16), v, r); ok {
		return sha256.Sum256(normal)
	}
	return hashOf(long())
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
