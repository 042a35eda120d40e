package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"hash"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// Hash is the sha256 of a piece of a call in its normal form. The normal form
// is RFC 8785 canonical JSON (https://www.rfc-editor.org/rfc/rfc8785) with two
// changes: "cache_control", which clients move from message to message, is
// dropped, and a content with a single text part is written as a string.
type Hash [sha256.Size]byte

// Hashes has the hashes of one call. Equal parts of two calls have equal
// hashes, so a later call needs hashes for its new parts only.
type Hashes struct {
	Messages []Hash
	Tools    Hash
	Params   Hash

	sum    hash.Hash   // running sum of the message hashes; nil: not begun, or moved to later hashes by Based
	summed int         // number of messages in sum
	grown  atomic.Bool // later hashes were appended to the memory of Messages
}

// Based returns new hashes that begin with the first keep message hashes of h,
// for a later call that begins with the same messages. The first call of Based
// that keeps all of them shares the memory of h instead of copying it.
func (h *Hashes) Based(keep int) *Hashes {
	if keep < len(h.Messages) || !h.grown.CompareAndSwap(false, true) {
		return &Hashes{Messages: append(make([]Hash, 0, keep+keep/4+8), h.Messages[:keep]...)}
	}
	based := &Hashes{Messages: h.Messages, sum: h.sum, summed: h.summed}
	h.sum, h.summed = nil, 0
	return based
}

// Hasher hashes the pieces of calls. Its zero value is ready to use. It keeps
// its buffer, so reuse one Hasher for many pieces, from one goroutine at a time.
type Hasher struct{ normal []byte }

// Message hashes one message.
func (s *Hasher) Message(raw json.RawMessage) Hash { return s.hash(normalMessage(jsontext.Value(raw))) }

// Tools hashes a list of tools. No tools hash as an empty list.
func (s *Hasher) Tools(raw json.RawMessage) Hash {
	if len(raw) == 0 {
		raw = json.RawMessage(noTools)
	}
	v := jsontext.Value(raw)
	if bytes.Contains(v, []byte(`"cache_control"`)) {
		v = eachOf(v, func(tool jsontext.Value) jsontext.Value { return without(tool, nil) })
	}
	return s.hash(v)
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
	return s.hash(object)
}

// Digest returns the digest of the call: the sha256 of the hashes of its
// messages, then of its tools, then of its parameters. Hashes made by Based
// continue from the running sum, so the cost does not grow with the length of
// the conversation.
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

// noTools, as the tools of a delta, means that the call has no tools although
// its base has.
const noTools = "[]"

// hash hashes the canonical form of v. Input that is not JSON is hashed as it
// is.
func (s *Hasher) hash(v jsontext.Value) Hash {
	c := jsontext.Value(append(s.normal[:0], v...))
	err := c.Canonicalize()
	s.normal = c[:0]
	if err != nil {
		return sha256.Sum256(v)
	}
	return sha256.Sum256(c)
}

// normalMessage drops cache_control and simplifies the content of a message,
// see Hash.
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

// onlyText returns the text of a list that has exactly one plain text part;
// nil for any other list.
func onlyText(list jsontext.Value) jsontext.Value {
	var text jsontext.Value
	members, isText := 0, false
	_ = rawjson.EachElement(list, func(part jsontext.Value) error { // eachOf wrote the list
		if part.Kind() != '{' {
			return nil
		}
		return rawjson.EachMember(part, func(name string, value jsontext.Value) error {
			members++
			switch {
			case name == "type":
				isText = string(value) == `"text"`
			case name == "text" && value.Kind() == '"':
				text = value
			}
			return nil
		})
	})
	if members == 2 && isText {
		return text
	}
	return nil
}

// without copies an object without cache_control and passes each value through
// change, which may be nil. Other values are returned as they are.
func without(v jsontext.Value, change func(name string, value jsontext.Value) jsontext.Value) jsontext.Value {
	if v.Kind() != '{' {
		return v
	}
	out := make(jsontext.Value, 1, len(v)+1)
	out[0] = '{'
	err := rawjson.EachMember(v, func(name string, value jsontext.Value) error {
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

// eachOf copies an array and passes each element through change. Other values
// are returned as they are.
func eachOf(v jsontext.Value, change func(jsontext.Value) jsontext.Value) jsontext.Value {
	if v.Kind() != '[' {
		return v
	}
	out := jsontext.Value{'['}
	err := rawjson.EachElement(v, func(value jsontext.Value) error {
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
