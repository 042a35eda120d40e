package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"

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
}

// HashMessage hashes one message.
func HashMessage(raw json.RawMessage) Hash { return hashOf(normalMessage(jsontext.Value(raw))) }

// HashTools hashes a list of tools; none is an empty list.
func HashTools(raw json.RawMessage) Hash {
	if len(raw) == 0 {
		raw = json.RawMessage(noTools)
	}
	v := jsontext.Value(raw)
	if bytes.Contains(v, []byte(`"cache_control"`)) {
		v = eachOf(v, func(tool jsontext.Value) jsontext.Value { return without(tool, nil) })
	}
	return hashOf(v)
}

// DigestOf sums a call up: the sha256 of the hashes of its messages, then of its
// tools, then of its parameters as one object.
func (c *Call) DigestOf(h Hashes) []byte {
	sum := sha256.New()
	for i := range h.Messages {
		sum.Write(h.Messages[i][:])
	}
	sum.Write(h.Tools[:])
	params := []byte{'{'}
	for name, value := range c.Params {
		if len(params) > 1 {
			params = append(params, ',')
		}
		params, _ = jsontext.AppendQuote(params, name)
		params = append(append(params, ':'), value...)
	}
	p := hashOf(append(params, '}'))
	sum.Write(p[:])
	return sum.Sum(nil)
}

// HashesOf hashes the whole of a call.
func (c *Call) HashesOf() Hashes {
	h := Hashes{Messages: make([]Hash, len(c.Messages)), Tools: HashTools(c.Tools)}
	for i, m := range c.Messages {
		h.Messages[i] = HashMessage(m)
	}
	return h
}

// noTools is how a call says that it has none where the one it is based on
// has.
const noTools = "[]"

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
