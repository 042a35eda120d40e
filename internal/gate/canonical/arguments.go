package canonical

import (
	"bytes"
	"errors"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// maxArgumentNesting bounds the nesting of arguments that go out as an object. It is
// smaller than the bound of a request, because the agent sends the object back
// inside of other values.
const maxArgumentNesting = rawjson.MaxNesting / 2

// ObjectOr returns the arguments of a function as an object. Empty arguments
// are an empty object. Other values are wrapped, so that the agent refuses the
// call and can tell the model the mistake.
func ObjectOr(arguments string) jsontext.Value {
	if v := object(arguments); v != nil {
		return v
	}
	if strings.TrimSpace(arguments) == "" {
		return jsontext.Value("{}")
	}
	b := append([]byte(nil), `{"invalid_arguments":`...)
	return append(rawjson.AppendString(b, arguments), '}')
}

// object returns arguments that are an object, on one line; nil: they are none.
func object(arguments string) jsontext.Value {
	v := jsontext.Value(arguments)
	if v.Kind() != '{' {
		return nil
	}
	if !v.IsValid() {
		if v, _ = rawjson.Mend(v); !v.IsValid() {
			return nil
		}
	}
	if rawjson.Bound(v, maxArgumentNesting) != nil { // the gate would refuse it when it comes back
		return nil
	}
	if bytes.ContainsAny(v, "\r\n") {
		v = v.Clone()
		_ = v.Compact() // valid, so it cannot fail
	}
	return v
}

// CompactObject returns a JSON object without needless white space, which is
// the form of tool arguments in canonical messages; an empty value is {}.
func CompactObject(v jsontext.Value) (string, error) {
	if len(v) == 0 || v.Kind() == 'n' {
		return "{}", nil
	}
	if v.Kind() != '{' {
		return "", errors.New("the input of a tool call is not an object")
	}
	if !bytes.ContainsAny(v, " \t\r\n") {
		return string(v), nil
	}
	c := v.Clone()
	if err := c.Compact(); err != nil {
		return "", err
	}
	return string(c), nil
}
