package rawjson

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// FormError reports that a text is not JSON, or that a field of it has another form than
// its reader wants.
type FormError struct {
	Field  string // such as requests[0].task; empty: the whole text
	Reason string // such as: a string is not valid: want a whole number
	err    error  // of the library
}

func (e *FormError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

func (e *FormError) Unwrap() error { return e.err }

// unknownField begins the error of encoding/json for a field that the reader does not have.
const unknownField = "json: unknown field "

// Plain turns an error of reading JSON with encoding/json or its successor, which may have names of this program's types, into
// a *FormError, which has the words of its writer. Other errors stay as they are.
func Plain(err error) error {
	var old *json.UnmarshalTypeError
	var oldSyntax *json.SyntaxError
	var wrong *jsonv2.SemanticError
	var syntax *jsontext.SyntacticError
	var when *time.ParseError
	var plain *FormError
	switch {
	case errors.As(err, &wrong):
		return &FormError{fieldOf(wrong.JSONPointer), reasonOf(wrong), err}
	case errors.As(err, &plain): // of a type that reads its own JSON
		return err
	case errors.As(err, &syntax):
		return &FormError{fieldOf(syntax.JSONPointer), notJSON(strings.TrimPrefix(syntax.Err.Error(), "jsontext: "), syntax.ByteOffset), err}
	case errors.As(err, &old):
		return &FormError{old.Field, invalid(givenAs(old.Value), old.Type), err}
	case errors.As(err, &oldSyntax):
		return &FormError{"", notJSON(oldSyntax.Error(), oldSyntax.Offset), err}
	case errors.As(err, &when):
		return &FormError{"", fmt.Sprintf("%.80q is not valid: want %s", when.Value, wantedTime), err}
	case err != nil && strings.HasPrefix(err.Error(), unknownField): // of no type
		return &FormError{fmt.Sprintf("%.80s", strings.Trim(strings.TrimPrefix(err.Error(), unknownField), `"`)), "there is no such field", err}
	case err != nil && strings.HasPrefix(err.Error(), "Time.UnmarshalJSON:"): // of no type
		return &FormError{"", "want " + wantedTime, err}
	default:
		return err
	}
}

const wantedTime = "a string with a time such as 2026-01-31T12:00:00Z"

func notJSON(why string, at int64) string {
	return fmt.Sprintf("it is not JSON: %.200s at byte %d", why, at)
}

func invalid(given string, t reflect.Type) string { return given + " is not valid: want " + wanted(t) }

func reasonOf(e *jsonv2.SemanticError) string {
	switch {
	case errors.Is(e.Err, jsonv2.ErrUnknownName):
		return "there is no such field"
	case e.Err != nil && !errors.Is(e.Err, strconv.ErrRange) && !errors.Is(e.Err, strconv.ErrSyntax):
		return Plain(e.Err).Error() // of a type that reads its own JSON
	case e.JSONKind == '0' && len(e.JSONValue) > 0:
		return invalid(givenAs("number "+string(e.JSONValue)), e.GoType)
	case e.JSONKind == 't', e.JSONKind == 'f':
		return invalid(givenAs("bool"), e.GoType)
	case e.JSONKind == '{':
		return invalid(givenAs("object"), e.GoType)
	case e.JSONKind == '[':
		return invalid(givenAs("array"), e.GoType)
	default:
		return invalid(givenAs(e.JSONKind.String()), e.GoType)
	}
}

// givenAs describes a value by the kind that encoding/json names.
func givenAs(kind string) string {
	if n, ok := strings.CutPrefix(kind, "number "); ok {
		return fmt.Sprintf("%.80s", n)
	}
	switch kind {
	case "string", "number":
		return "a " + kind
	case "array", "object":
		return "an " + kind
	case "bool":
		return "a boolean"
	case "null":
		return kind
	default:
		return "the value"
	}
}

// wanted describes the form that a type needs.
func wanted(t reflect.Type) string {
	if t == nil {
		return "another form"
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0, of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a string in base64"
		}
		return "an array"
	case reflect.Array:
		return "an array"
	default:
		return "another form"
	}
}

// fieldOf writes a JSON pointer as schema's errors write a path: /requests/0/task as
// requests[0].task.
func fieldOf(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 32); err == nil {
			b.WriteString("[" + token + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		fmt.Fprintf(&b, "%.80s", token)
	}
	return fmt.Sprintf("%.300s", b.String())
}
