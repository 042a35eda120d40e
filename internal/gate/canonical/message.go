package canonical

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// FinishReason returns the finish reason that the agent reads. Engines and trainers give
// reasons that disagree with the message, and agents decide by the reason whether
// to ask again: without a call it is never tool_calls, and with calls that are
// complete it always is. With a call that was cut off it stays.
func FinishReason(reason string, calls []ToolCall) string {
	switch {
	case len(calls) == 0 && reason == "tool_calls":
		return "stop"
	case len(calls) > 0 && (reason == "stop" || !slices.ContainsFunc(calls, cutOff)):
		return "tool_calls"
	default:
		return reason
	}
}

// cutOff reports whether a call may lack its end: its arguments are no object.
func cutOff(c ToolCall) bool { return c.Custom() || object(c.Input()) == nil }

// Content collects the parts of a message. A single plain text becomes a
// string, as in the normal form.
type Content struct{ parts []part }

// part is either a plain text, as a JSON string, or another part.
type part struct{ text, other jsontext.Value }

// TextOnly returns a content of one text, a JSON string.
func TextOnly(s jsontext.Value) *Content { return &Content{parts: []part{{text: s}}} }

// Text adds a text, a JSON string, with its extra members.
func (c *Content) Text(s, extra jsontext.Value) error {
	if len(extra) == 0 {
		c.parts = append(c.parts, part{text: s})
		return nil
	}
	o := textPartOf(s)
	alone := o.Len()
	// These members do not belong to the conversation, or are empty in answers
	// of a gate.
	if err := o.Extra(extra, "cache_control", "citations", "annotations", "logprobs", "thoughtSignature"); err != nil {
		return err
	}
	if o.Len() == alone {
		c.parts = append(c.parts, part{text: s})
	} else {
		c.parts = append(c.parts, part{other: o.Done()})
	}
	return nil
}

func textPartOf(s jsontext.Value) *rawjson.Object {
	return rawjson.NewObject().Str("type", "text").Raw("text", s)
}

// add adds a part with its extra members.
func (c *Content) add(o *rawjson.Object, extra jsontext.Value) error {
	err := o.Extra(extra, "cache_control", "citations", "thoughtSignature")
	c.parts = append(c.parts, part{other: o.Done()})
	return err
}

// Image adds an image; detail is the level of detail that the agent asks for,
// or empty.
func (c *Content) Image(url, detail string, extra jsontext.Value) error {
	i := rawjson.NewObject().Str("url", url)
	if detail != "" && detail != "auto" {
		i.Str("detail", detail)
	}
	return c.add(rawjson.NewObject().Str("type", "image_url").Raw("image_url", i.Done()), extra)
}

// File adds a document with either data, a URL or a data URL, or an id. format
// is its media type if the URL does not have it.
func (c *Content) File(name, data, id, format string, extra jsontext.Value) error {
	f := rawjson.NewObject()
	if name != "" {
		f.Str("filename", name)
	}
	if data != "" {
		f.Str("file_data", data)
	}
	if id != "" {
		f.Str("file_id", id)
	}
	if format != "" {
		f.Str("format", format)
	}
	return c.add(rawjson.NewObject().Str("type", "file").Raw("file", f.Done()), extra)
}

// Empty reports whether the content has no parts.
func (c *Content) Empty() bool { return len(c.parts) == 0 }

// Value returns the content as JSON; an empty string without parts.
func (c *Content) Value() []byte {
	if len(c.parts) == 0 {
		return []byte(`""`)
	}
	if len(c.parts) == 1 && c.parts[0].text != nil {
		return c.parts[0].text
	}
	all := make([]jsontext.Value, len(c.parts))
	for i, p := range c.parts {
		if all[i] = p.other; p.text != nil {
			all[i] = textPartOf(p.text).Done()
		}
	}
	return rawjson.List(all)
}

// Message returns a canonical message with a role and a content.
func Message(role string, c *Content) []byte {
	return rawjson.NewObject().Str("role", role).Raw("content", c.Value()).Done()
}

// Call returns a tool call in canonical form; arguments is a JSON string.
func Call(id, name string, arguments jsontext.Value) []byte {
	f := rawjson.NewObject().Str("name", name).Raw("arguments", arguments)
	return rawjson.NewObject().Str("id", id).Str("type", "function").Raw("function", f.Done()).Done()
}

// Function returns a tool definition in canonical form. more has further
// members; it may be nil.
func Function(name string, description, parameters, strict jsontext.Value, more *rawjson.Object) []byte {
	f := rawjson.NewObject().Str("name", name)
	for _, m := range []struct {
		name  string
		value jsontext.Value
	}{{"description", description}, {"parameters", parameters}, {"strict", strict}} {
		if len(m.value) > 0 && m.value.Kind() != 'n' {
			f.Raw(m.name, m.value)
		}
	}
	f.Merge(more)
	return rawjson.NewObject().Str("type", "function").Raw("function", f.Done()).Done()
}

// CustomCall returns a call of a tool with free text as input; input is a JSON
// string.
func CustomCall(id, name string, input jsontext.Value) []byte {
	c := rawjson.NewObject().Str("name", name).Raw("input", input)
	return rawjson.NewObject().Str("id", id).Str("type", "custom").Raw("custom", c.Done()).Done()
}

// Assistant returns a canonical message of the model.
func Assistant(answer *Content, reasoning string, details, calls []jsontext.Value) []byte {
	o := rawjson.NewObject().Str("role", "assistant")
	if answer.Empty() && len(calls) > 0 {
		o.Raw("content", []byte("null"))
	} else {
		o.Raw("content", answer.Value())
	}
	if reasoning != "" {
		o.Str("reasoning_content", reasoning)
	}
	if len(details) > 0 {
		o.Raw("reasoning_details", rawjson.List(details))
	}
	if len(calls) > 0 {
		o.Raw("tool_calls", rawjson.List(calls))
	}
	return o.Done()
}

// Result returns the message of a tool's result, to which the caller may add
// members.
func Result(id string, c *Content) *rawjson.Object {
	return rawjson.NewObject().Str("role", "tool").Str("tool_call_id", id).Raw("content", c.Value())
}

// ResultExtra copies further members of a tool's result to its message. It refuses the names that
// the canonical message has.
func ResultExtra(o *rawjson.Object, members jsontext.Value) error {
	if len(members) == 0 {
		return nil
	}
	err := rawjson.EachMember(members, func(name string, _ jsontext.Value) error {
		switch name {
		case "role", "content", "tool_call_id", "is_error":
			return fmt.Errorf("%s: a member that the result of a tool does not have", name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return o.Extra(members)
}

// ChooseFunction returns the tool_choice of one function.
func ChooseFunction(name string) []byte {
	return rawjson.NewObject().Str("type", "function").Raw("function", rawjson.NewObject().Str("name", name).Done()).Done()
}

// AnswerSchema returns a response_format that asks for JSON of a schema.
func AnswerSchema(of jsontext.Value) []byte {
	return rawjson.NewObject().Str("type", "json_schema").Raw("json_schema", rawjson.NewObject().Str("name", "answer").Raw("schema", of).Done()).Done()
}

// OnlyOne refuses a request for several answers.
func OnlyOne(name string, value jsontext.Value) error {
	if s := string(value); s != "1" && s != "null" {
		return fmt.Errorf("%s is %.80s: only one answer a call is supported", name, s)
	}
	return nil
}
