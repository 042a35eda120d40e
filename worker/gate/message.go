package gate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// said is an assistant message in the form of OpenAI chat, or a piece of one
// that is being streamed.
type said struct {
	Content          text       `json:"content"`
	Refusal          text       `json:"refusal"`
	ReasoningContent text       `json:"reasoning_content"`
	Reasoning        text       `json:"reasoning"` // the same, as some engines call it
	ToolCalls        []toolCall `json:"tool_calls"`
}

// toolCall is one wish of the model; of a piece, only what is new is set.
type toolCall struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
	Custom struct { // a tool whose input is free text
		Name  string `json:"name"`
		Input string `json:"input"`
	} `json:"custom"`
}

func (c *toolCall) custom() bool { return c.Type == "custom" }

func (c *toolCall) name() string {
	if c.custom() {
		return c.Custom.Name
	}
	return c.Function.Name
}

// input is what the tool is given: JSON for a function, free text otherwise.
func (c *toolCall) input() string {
	if c.Custom.Input != "" {
		return c.Custom.Input
	}
	return c.Function.Arguments
}

// text is a string, null, or a list of text parts.
type text string

func (t *text) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	switch d.PeekKind() {
	case '"', 'n':
		return json.UnmarshalDecode(d, (*string)(t))
	}
	var parts []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	}
	if err := json.UnmarshalDecode(d, &parts); err != nil {
		return err
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Type != "text" && p.Type != "refusal" {
			return fmt.Errorf("a content part of type %q cannot be an answer", p.Type)
		}
		b.WriteString(p.Text + p.Refusal)
	}
	*t = text(b.String())
	return nil
}

// readSaid reads a whole message or a delta.
func readSaid(raw []byte) (said, error) {
	var s said
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("not an assistant message: %w", err)
	}
	if s.ReasoningContent == "" {
		s.ReasoningContent = s.Reasoning
	}
	if s.Content == "" {
		s.Content = s.Refusal
	}
	for i := range s.ToolCalls {
		if c := &s.ToolCalls[i]; c.Index == nil {
			c.Index = &i
		} else if *c.Index < 0 {
			return s, errors.New("a tool call has a negative index")
		}
	}
	return s, nil
}

// finish is the reason as it must be read beside the tool calls of a message.
func finish(reason string, tools int) string {
	if reason == "stop" && tools > 0 {
		return "tool_calls"
	}
	return reason
}

// compactObject is a JSON object without needless white space, as tool
// arguments are written in canonical messages; an empty value is {}.
func compactObject(v jsontext.Value) (string, error) {
	if len(v) == 0 || v.Kind() == 'n' {
		return "{}", nil
	}
	if v.Kind() != '{' {
		return "", errors.New("the input of a tool call is not an object")
	}
	c := v.Clone()
	if err := c.Compact(); err != nil {
		return "", err
	}
	return string(c), nil
}

// objectOr gives the arguments of a function as an object; what is no object
// is wrapped, so that the agent can tell the model what was wrong.
func objectOr(arguments string) jsontext.Value {
	v := jsontext.Value(arguments)
	if v.IsValid() && v.Kind() == '{' {
		if strings.ContainsAny(arguments, "\r\n") {
			_ = v.Compact() // valid, so it cannot fail
		}
		return v
	}
	if strings.TrimSpace(arguments) == "" {
		return jsontext.Value("{}")
	}
	b := append([]byte(nil), `{"invalid_arguments":`...)
	return append(appendString(b, arguments), '}')
}

// object writes a JSON object member by member.
type object struct{ b []byte }

func newObject() *object { return &object{b: make([]byte, 1, 256)} }

func (o *object) key(name string) {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = append(appendString(o.b, name), ':')
}

func (o *object) raw(name string, value []byte) *object {
	o.key(name)
	o.b = append(o.b, value...)
	return o
}

func (o *object) str(name, value string) *object {
	o.key(name)
	o.b = appendString(o.b, value)
	return o
}

// extra copies the members of an object that are not taken care of, but for
// those that say nothing.
func (o *object) extra(members jsontext.Value, but ...string) error {
	if len(members) == 0 {
		return nil
	}
	return schema.EachMember(members, func(name string, value jsontext.Value) error {
		if value.Kind() == 'n' {
			return nil
		}
		for _, b := range but {
			if name == b {
				return nil
			}
		}
		o.raw(name, value)
		return nil
	})
}

func (o *object) done() []byte {
	o.b[0] = '{'
	return append(o.b, '}')
}

// list joins values to a JSON array.
func list[T ~[]byte](values []T) []byte {
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

// unquote is the text of a JSON string; null has none.
func unquote(v jsontext.Value) (string, error) {
	switch v.Kind() {
	case '"':
	case 'n':
		return "", nil
	default:
		return "", errors.New("want a string")
	}
	s, err := jsontext.AppendUnquote(nil, v)
	return string(s), err
}

func quoted(s string) []byte { return appendString(nil, s) }

// content collects the parts of a message. A single plain text is a string, as
// in the normal form.
type content struct {
	parts []jsontext.Value
	plain []string // as long as all parts are plain text
}

func (c *content) text(s string, extra jsontext.Value) error {
	o := newObject().str("type", "text").str("text", s)
	// Left out is what says nothing of the conversation, or is empty in what a
	// gate made.
	if err := o.extra(extra, "cache_control", "citations", "annotations", "logprobs", "thoughtSignature"); err != nil {
		return err
	}
	c.parts = append(c.parts, o.done())
	c.plain = append(c.plain, s)
	return nil
}

// image adds a picture; detail is how closely it is to be looked at, if that
// was said.
func (c *content) image(url, detail string) {
	i := newObject().str("url", url)
	if detail != "" && detail != "auto" {
		i.str("detail", detail)
	}
	c.parts = append(c.parts, newObject().str("type", "image_url").raw("image_url", i.done()).done())
}

// file adds a document; it has either data, as a data or another URL, or an
// id. format is its media type where the URL does not say it.
func (c *content) file(name, data, id, format string) {
	f := newObject()
	if name != "" {
		f.str("filename", name)
	}
	if data != "" {
		f.str("file_data", data)
	}
	if id != "" {
		f.str("file_id", id)
	}
	if format != "" {
		f.str("format", format)
	}
	c.parts = append(c.parts, newObject().str("type", "file").raw("file", f.done()).done())
}

// value is the content as JSON; without parts it is an empty string.
func (c *content) value() []byte {
	switch {
	case len(c.parts) == 0:
		return []byte(`""`)
	case len(c.parts) == 1 && len(c.plain) == 1 && len(c.parts[0]) == len(newObject().str("type", "text").str("text", c.plain[0]).done()):
		return quoted(c.plain[0])
	default:
		return list(c.parts)
	}
}

// message is a canonical message that has a role and a content.
func message(role string, c *content) []byte {
	return newObject().str("role", role).raw("content", c.value()).done()
}

// call is a tool call in canonical form.
func call(id, name, arguments string) []byte {
	f := newObject().str("name", name).str("arguments", arguments)
	return newObject().str("id", id).str("type", "function").raw("function", f.done()).done()
}

// function is a tool definition in canonical form.
func function(name string, description, parameters, strict jsontext.Value) []byte {
	f := newObject().str("name", name)
	for _, m := range []struct {
		name  string
		value jsontext.Value
	}{{"description", description}, {"parameters", parameters}, {"strict", strict}} {
		if len(m.value) > 0 && m.value.Kind() != 'n' {
			f.raw(m.name, m.value)
		}
	}
	return newObject().str("type", "function").raw("function", f.done()).done()
}
