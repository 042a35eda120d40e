package rawjson

import (
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Object writes a JSON object member by member.
type Object struct{ b []byte }

// NewObject returns an object without members.
func NewObject() *Object { return &Object{b: make([]byte, 1, objectRoom)} }

// objectRoom is the capacity of a small object in bytes.
const objectRoom = 256

func (o *Object) key(name string) {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = append(AppendString(o.b, name), ':')
}

// Raw adds a member with a JSON value.
func (o *Object) Raw(name string, value []byte) *Object {
	if need := len(name) + len(value) + len(`"":,}`); cap(o.b)-len(o.b) < need {
		o.b = slices.Grow(o.b, need+objectRoom) // with room for later members
	}
	o.key(name)
	o.b = append(o.b, value...)
	return o
}

// Str adds a member with a string.
func (o *Object) Str(name, value string) *Object {
	o.key(name)
	o.b = AppendString(o.b, value)
	return o
}

// Extra copies the members of an object; it omits nulls and the names in but.
func (o *Object) Extra(members jsontext.Value, but ...string) error {
	if len(members) == 0 {
		return nil
	}
	return EachMember(members, func(name string, value jsontext.Value) error {
		if value.Kind() == 'n' {
			return nil
		}
		for _, b := range but {
			if name == b {
				return nil
			}
		}
		o.Raw(name, value)
		return nil
	})
}

// Merge adds the members of another object that is not done; other may be nil.
func (o *Object) Merge(other *Object) *Object {
	if other != nil && !other.Empty() {
		o.b = append(append(o.b, ','), other.b[1:]...)
	}
	return o
}

// Empty reports whether the object has no members.
func (o *Object) Empty() bool { return len(o.b) <= 1 }

// Len returns the size of the object so far, in bytes.
func (o *Object) Len() int { return len(o.b) }

// Done returns the object as JSON. No member can be added after that.
func (o *Object) Done() []byte {
	o.b[0] = '{'
	return append(o.b, '}')
}

// Others collects the members of an object that its reader does not know.
type Others struct{ o *Object }

// Add adds a member.
func (r *Others) Add(name string, value jsontext.Value) {
	if r.o == nil {
		r.o = NewObject()
	}
	r.o.Raw(name, value)
}

// Object returns the members as an object; nil if there are none.
func (r *Others) Object() jsontext.Value {
	if r.o == nil {
		return nil
	}
	return r.o.Done()
}

// List joins values to a JSON array.
func List[T ~[]byte](values []T) []byte {
	size := len(`[]`) + len(values)
	for _, v := range values {
		size += len(v)
	}
	b := append(make([]byte, 0, size), '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

// Quote returns a text as a JSON string.
func Quote(s string) []byte { return AppendString(nil, s) }

// AppendString appends a text as a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func AppendString(b []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	out, err := jsontext.AppendQuote(b, s)
	if err != nil { // not UTF-8: bytes were replaced
		return out
	}
	return out
}

// isPlain reports whether a string needs no escapes in JSON.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
