package schema

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// CheckAnswer checks that the message of a reply is an assistant's in the form
// of OpenAI chat
// (https://platform.openai.com/docs/api-reference/chat/object), which every
// dialect of a gate can write. A tool's arguments are a JSON string with any
// text in it: the agent judges whether that text is a usable object. A call's id may be
// missing, or the same as another's: the gate gives agents ids of its own. Text that
// is not valid Unicode passes, see MendAnswer. Errors are an *InvalidError.
func CheckAnswer(message []byte) error {
	_, _, err := MendAnswer(message)
	return err
}

// MendAnswer checks a message as CheckAnswer does and replaces invalid Unicode
// by U+FFFD: escapes of single surrogates, and bytes that are not UTF-8.
// replaced counts the replacements.
func MendAnswer(message []byte) (mended []byte, replaced int, err error) {
	return mendAnswer(message, "message", true)
}

// MendPiece is MendAnswer for a delta. Its tool calls may be incomplete.
func MendPiece(delta []byte) (mended []byte, replaced int, err error) {
	return mendAnswer(delta, "delta", false)
}

// CheckPiece is CheckAnswer for a delta. Its tool calls may be incomplete.
func CheckPiece(delta []byte) error {
	_, _, err := MendPiece(delta)
	return err
}

func mendAnswer(raw []byte, field string, whole bool) (v jsontext.Value, replaced int, err error) {
	v = raw
	if v.Kind() != '{' {
		return v, 0, invalid(field, kindName(v), "want a JSON object")
	}
	if !v.IsValid() {
		if v, replaced = rawjson.Mend(v); !v.IsValid() {
			return v, 0, invalid(field, "no JSON", "want a JSON object")
		}
	}
	return v, replaced, rawjson.EachMember(v, func(name string, v jsontext.Value) error { return checkMember(field, name, v, whole) })
}

func checkMember(message, name string, v jsontext.Value, whole bool) error {
	switch name {
	case "role":
		if v.Kind() != 'n' && string(v) != `"assistant"` {
			return invalid(message+".role", string(v), `want "assistant"`)
		}
	case "content":
		if v.Kind() == '[' && whole {
			return checkTextParts(v, message+".content")
		}
		if v.Kind() != '"' {
			return checkString(v, message+".content", true, "want a string or null; a whole message may have a list of text parts")
		}
	case "refusal", "reasoning_content", "reasoning":
		if v.Kind() != '"' {
			return checkString(v, message+"."+name, true, "want a string or null")
		}
	case "tool_calls":
		return checkToolCalls(v, message+".tool_calls", whole)
	}
	return nil
}

func checkTextParts(v jsontext.Value, field string) error {
	i := -1
	return rawjson.EachElement(v, func(v jsontext.Value) error {
		i++
		field := fmt.Sprintf("%s[%d]", field, i)
		if v.Kind() != '{' {
			return invalid(field, kindName(v), "want an object with type and text")
		}
		kind := ""
		err := rawjson.EachMember(v, func(name string, v jsontext.Value) error {
			switch name {
			case "type":
				kind = string(v)
			case "text", "refusal":
				return checkString(v, field+"."+name, false, "want a string")
			}
			return nil
		})
		if err == nil && kind != `"text"` && kind != `"refusal"` {
			err = invalid(field+".type", kind, "want text or refusal: an answer has no other parts")
		}
		return err
	})
}

// maxCallID bounds the id of a tool call, in bytes of JSON.
const maxCallID = 1024

func checkToolCalls(v jsontext.Value, field string, whole bool) error {
	if v.Kind() != '[' && v.Kind() != 'n' {
		return invalid(field, kindName(v), "want a list, or null")
	}
	i := -1
	return rawjson.EachElement(v, func(v jsontext.Value) error {
		i++
		field := fmt.Sprintf("%s[%d]", field, i)
		if v.Kind() != '{' {
			return invalid(field, kindName(v), "want an object with id, type and function")
		}
		custom := false
		var named, input jsontext.Value
		err := rawjson.EachMember(v, func(name string, v jsontext.Value) error {
			switch name {
			case "index":
				if !isIndex(v) {
					return invalid(field+".index", string(v), "want a number of 0 or more")
				}
			case "id":
				if len(v) > maxCallID {
					return invalid(field+".id", fmt.Sprintf("%d bytes", len(v)), fmt.Sprintf("want at most %d", maxCallID))
				}
				return checkString(v, field+".id", true, "want a string, or null")
			case "type":
				custom = string(v) == `"custom"`
				if v.Kind() != 'n' && string(v) != `"function"` && !custom {
					return invalid(field+".type", string(v), "want function or custom")
				}
			case "function":
				named = v
			case "custom":
				input = v
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case custom || named == nil && input != nil:
			return checkNamed(input, field+".custom", "input", whole)
		default:
			return checkNamed(named, field+".function", "arguments", whole)
		}
	})
}

// checkNamed checks an object with a name and one more string, the member what.
func checkNamed(v jsontext.Value, field, what string, whole bool) error {
	if !whole && (v == nil || v.Kind() == 'n') {
		return nil
	}
	if v.Kind() != '{' {
		return invalid(field, kindName(v), "want an object with name and "+what)
	}
	var name, text bool
	err := rawjson.EachMember(v, func(member string, v jsontext.Value) error {
		switch member {
		case "name":
			name = true
			return checkString(v, field+".name", !whole, "want a string")
		case what:
			text = true
			return checkString(v, field+"."+what, !whole, "want a string, with the model's own text in it")
		}
		return nil
	})
	switch {
	case err != nil || !whole:
		return err
	case !name:
		return invalid(field+".name", "", "want a string")
	case !text:
		return invalid(field+"."+what, "", "want a string, with the model's own text in it")
	}
	return nil
}

func isIndex(v jsontext.Value) bool {
	for _, c := range v {
		if c < '0' || c > '9' {
			return v.Kind() == 'n'
		}
	}
	return len(v) < 7
}

func checkString(v jsontext.Value, field string, orNull bool, want string) error {
	if v.Kind() == '"' || orNull && v.Kind() == 'n' {
		return nil
	}
	return invalid(field, kindName(v), want)
}

// kindName names the JSON type of a value, for errors that must not repeat the
// value itself.
func kindName(v jsontext.Value) string {
	switch v.Kind() {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	default:
		return "no JSON"
	}
}
