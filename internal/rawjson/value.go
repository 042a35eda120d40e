package rawjson

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// EachField is EachMember with errors that name the member.
func EachField(v jsontext.Value, f func(name string, value jsontext.Value) error) error {
	return EachMember(v, func(name string, value jsontext.Value) error {
		if err := f(name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// IsTrue returns the value of a boolean; null is false.
func IsTrue(v jsontext.Value) (bool, error) {
	switch v.Kind() {
	case 't', 'f', 'n':
		return v.Kind() == 't', nil
	default:
		return false, errors.New("want true or false")
	}
}

// Unquote returns the text of a JSON string; null is an empty text.
func Unquote(v jsontext.Value) (string, error) {
	switch v.Kind() {
	case '"':
	case 'n':
		return "", nil
	default:
		return "", errors.New("want a string")
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1]), nil
	}
	s, err := jsontext.AppendUnquote(nil, v)
	return string(s), err
}

// Literal returns a JSON string unchanged; null is an empty string.
func Literal(v jsontext.Value) (jsontext.Value, error) {
	switch v.Kind() {
	case '"':
		return v, nil
	case 'n':
		return jsontext.Value(`""`), nil
	default:
		return nil, errors.New("want a string")
	}
}

// OneLine checks that raw is a JSON object and removes line breaks, which would
// end an event of a stream.
func OneLine(raw []byte) (jsontext.Value, error) {
	v := jsontext.Value(raw)
	if v.Kind() != '{' || !v.IsValid() {
		return nil, errors.New("not a JSON object")
	}
	if bytes.IndexByte(v, '\n') >= 0 || bytes.IndexByte(v, '\r') >= 0 {
		v = bytes.Clone(v)
		if err := v.Compact(); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Same reports whether two JSON values have the same canonical form.
func Same(a, b jsontext.Value) bool {
	if bytes.Equal(a, b) {
		return true
	}
	a, b = a.Clone(), b.Clone()
	return a.Canonicalize() == nil && b.Canonicalize() == nil && bytes.Equal(a, b)
}
