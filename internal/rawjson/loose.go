package rawjson

import (
	"encoding/json"
	"math"
	"time"
)

// Loose is a JSON object of another program, of which a newer version may write fields in
// another form. A field that is missing, null or of another form has no value.
type Loose map[string]json.RawMessage

// LooseOf reads an object; nil: the value is none.
func LooseOf(value []byte) Loose {
	var l Loose
	if json.Unmarshal(value, &l) != nil {
		return nil
	}
	return l
}

// Has reports whether the object has the field with a value other than null.
func (l Loose) Has(field string) bool { return len(l[field]) > 0 && string(l[field]) != "null" }

// Object returns an object; nil: none.
func (l Loose) Object(field string) Loose { return LooseOf(l[field]) }

// List returns the elements of a list; nil: none.
func (l Loose) List(field string) []json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(l[field], &list) != nil {
		return nil
	}
	return list
}

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
