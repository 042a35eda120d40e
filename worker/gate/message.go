package gate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// finish is the reason as it must be read beside the tool calls of a message.
func finish(reason string, tools int) string {
	if reason == "stop" && tools > 0 {
		return "tool_calls"
	}
	return reason
}

func isTrue(v jsontext.Value) (bool, error) {
	switch v.Kind() {
	case 't', 'f', 'n':
		return v.Kind() == 't', nil
	default:
		return false, errors.New("want true or false")
	}
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
	if !bytes.ContainsAny(v, " \t\r\n") {
		return string(v), nil
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

func newObject() *object { return &object{b: make([]byte, 1, objectRoom)} }

// objectRoom is what a small object takes.
const objectRoom = 256

func (o *object) key(name string) {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = append(appendString(o.b, name), ':')
}

func (o *object) raw(name string, value []byte) *object {
	if need := len(name) + len(value) + len(`"":,}`); cap(o.b)-len(o.b) < need {
		o.b = slices.Grow(o.b, need+objectRoom) // for what comes behind, too
	}
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

// others collects the members of an object that nobody knows.
type others struct{ o *object }

func (r *others) add(name string, value jsontext.Value) {
	if r.o == nil {
		r.o = newObject()
	}
	r.o.raw(name, value)
}

// object has them; nil: there are none.
func (r *others) object() jsontext.Value {
	if r.o == nil {
		return nil
	}
	return r.o.done()
}

// list joins values to a JSON array.
func list[T ~[]byte](values []T) []byte {
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

// unquote is the text of a JSON string; null has none.
func unquote(v jsontext.Value) (string, error) {
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

// literal is a JSON string as it is; null is an empty one.
func literal(v jsontext.Value) (jsontext.Value, error) {
	switch v.Kind() {
	case '"':
		return v, nil
	case 'n':
		return jsontext.Value(`""`), nil
	default:
		return nil, errors.New("want a string")
	}
}

// eachField is EachMember with errors that name the member.
func eachField(v jsontext.Value, f func(name string, value jsontext.Value) error) error {
	return schema.EachMember(v, func(name string, value jsontext.Value) error {
		if err := f(name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

func quoted(s string) []byte { return appendString(nil, s) }

// content collects the parts of a message. A single plain text is a string, as
// in the normal form.
type content struct{ parts []part }

// part is a text that has nothing beside it, as JSON, or anything else.
type part struct{ text, other jsontext.Value }

// textOnly is a content that is one text, a JSON string.
func textOnly(s jsontext.Value) *content { return &content{parts: []part{{text: s}}} }

// text adds a text, a JSON string, and what is said of it beside.
func (c *content) text(s, extra jsontext.Value) error {
	if len(extra) == 0 {
		c.parts = append(c.parts, part{text: s})
		return nil
	}
	o := textPartOf(s)
	alone := len(o.b)
	// Left out is what says nothing of the conversation, or is empty in what a
	// gate made.
	if err := o.extra(extra, "cache_control", "citations", "annotations", "logprobs", "thoughtSignature"); err != nil {
		return err
	}
	if len(o.b) == alone {
		c.parts = append(c.parts, part{text: s})
	} else {
		c.parts = append(c.parts, part{other: o.done()})
	}
	return nil
}

func textPartOf(s jsontext.Value) *object { return newObject().str("type", "text").raw("text", s) }

func (c *content) add(o *object) { c.parts = append(c.parts, part{other: o.done()}) }

// image adds a picture; detail is how closely it is to be looked at, if that
// was said.
func (c *content) image(url, detail string) {
	i := newObject().str("url", url)
	if detail != "" && detail != "auto" {
		i.str("detail", detail)
	}
	c.add(newObject().str("type", "image_url").raw("image_url", i.done()))
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
	c.add(newObject().str("type", "file").raw("file", f.done()))
}

// value is the content as JSON; without parts it is an empty string.
func (c *content) value() []byte {
	if len(c.parts) == 0 {
		return []byte(`""`)
	}
	if len(c.parts) == 1 && c.parts[0].text != nil {
		return c.parts[0].text
	}
	all := make([]jsontext.Value, len(c.parts))
	for i, p := range c.parts {
		if all[i] = p.other; p.text != nil {
			all[i] = textPartOf(p.text).done()
		}
	}
	return list(all)
}

// message is a canonical message that has a role and a content.
func message(role string, c *content) []byte {
	return newObject().str("role", role).raw("content", c.value()).done()
}

// call is a tool call in canonical form; its arguments are a JSON string.
func call(id, name string, arguments jsontext.Value) []byte {
	f := newObject().str("name", name).raw("arguments", arguments)
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
