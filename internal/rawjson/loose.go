package rawjson

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// maxLoose bounds the fields of a Loose, and the elements of a list: small ones need far
// more memory than their text.
const maxLoose = 1 << 18

// Loose is a JSON object of another program, of which a newer version may write fields in
// another form. A field that is missing, null or of another form has no value.
type Loose map[string]json.RawMessage

// ReadLoose reads an object; nil without an error: the value is null.
func ReadLoose(value []byte) (Loose, error) {
	if !isSmall(value) {
		return nil, fmt.Errorf("it has more than %d fields", maxLoose)
	}
	var l Loose
	return l, Plain(json.Unmarshal(value, &l))
}

// LooseOf reads an object; nil: the value is none, or has too many fields.
func LooseOf(value []byte) Loose {
	l, err := ReadLoose(value)
	if err != nil {
		return nil
	}
	return l
}

// LooseList reads a list; nil: the value is none, or has too many elements.
func LooseList(value []byte) []json.RawMessage {
	var list []json.RawMessage
	if !isSmall(value) || json.Unmarshal(value, &list) != nil {
		return nil
	}
	return list
}

// isSmall reports whether an object or a list has at most maxLoose members. It does not
// check that the value is JSON.
func isSmall(value []byte) bool {
	depth, n := 0, 1
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case '"':
			i = textEnd(value, i+1) - 1
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 1 {
				n++
			}
		}
	}
	return n <= maxLoose
}

// Only returns the object with some of its fields, so that the others need no memory.
func (l Loose) Only(fields ...string) Loose {
	if l == nil {
		return nil
	}
	out := Loose{}
	for _, f := range fields {
		if v, ok := l[f]; ok {
			out[f] = v
		}
	}
	return out
}

// Has reports whether the object has the field with a value other than null.
func (l Loose) Has(field string) bool { return len(l[field]) > 0 && string(l[field]) != "null" }

// Object returns an object; nil: none.
func (l Loose) Object(field string) Loose { return LooseOf(l[field]) }

// List returns the elements of a list; nil: none.
func (l Loose) List(field string) []json.RawMessage { return LooseList(l[field]) }

// Text returns a text; empty: none.
func (l Loose) Text(field string) string {
	var s string
	if json.Unmarshal(l[field], &s) != nil {
		return ""
	}
	return s
}

// Bool returns whether the field is true.
func (l Loose) Bool(field string) bool { return string(l[field]) == "true" }

// Number returns a number; nil: none.
func (l Loose) Number(field string) *float64 {
	var n *float64
	if json.Unmarshal(l[field], &n) != nil {
		return nil
	}
	return n
}

// Count returns a whole number from 0 to 2^53, as far as the value is in that range; 0:
// none.
func (l Loose) Count(field string) int64 {
	n := l.Number(field)
	if n == nil {
		return 0
	}
	return int64(min(max(math.Trunc(*n), 0), 1<<53))
}

// Time returns a time in the form of ISO 8601; zero: none. One without a zone is of the
// host's zone.
func (l Loose) Time(field string) time.Time {
	text := l.Text(field)
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t
	}
	t, err := time.ParseInLocation("2006-01-02T15:04:05.999999999", text, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}
