package gate

import (
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// item is one element of a response's input.
type item struct {
	Type, Role       string
	CallID, Name     string
	Namespace        string
	Content, Output  jsontext.Value
	Arguments, Input jsontext.Value // JSON strings
	Encrypted        string
	Summary          jsontext.Value
}

func (i *item) read(raw jsontext.Value) error {
	i.Arguments, i.Input = jsontext.Value(`""`), jsontext.Value(`""`)
	return eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			i.Type, err = unquote(v)
		case "role":
			i.Role, err = unquote(v)
		case "content":
			i.Content = v
		case "call_id":
			i.CallID, err = unquote(v)
		case "name":
			i.Name, err = unquote(v)
		case "namespace":
			i.Namespace, err = unquote(v)
		case "arguments":
			i.Arguments, err = literal(v)
		case "input":
			i.Input, err = literal(v)
		case "output":
			i.Output = v
		case "encrypted_content":
			i.Encrypted, err = unquote(v)
		case "summary":
			i.Summary = v
		}
		return err
	})
}

// byModel reports whether the model made it: such items in a row are one
// message of it.
func (i *item) byModel() bool {
	switch i.Type {
	case "function_call", "custom_tool_call", "reasoning":
		return true
	case "", "message":
		return i.Role == "assistant"
	}
	return false
}

// readItems turns the items from one of them into canonical messages.
func readItems(p *parts, from int) (end int, open bool, messages []stdjson.RawMessage, err error) {
	var turn modelTurn
	for end = from; end < len(p.items); end++ {
		var it item
		if err := it.read(p.item(end)); err != nil {
			return 0, false, nil, fmt.Errorf("input.%d: %w", end, err)
		}
		if it.byModel() {
			// What follows calls or a text in the same turn is a turn of its own.
			if turn.ended(&it) {
				break
			}
			if err := turn.add(&it); err != nil {
				return 0, false, nil, fmt.Errorf("input.%d: %w", end, err)
			}
			continue
		}
		if end > from {
			break
		}
		one, err := it.message()
		if err != nil {
			err = fmt.Errorf("input.%d: %w", end, err)
		}
		return end + 1, false, []stdjson.RawMessage{one}, err
	}
	return end, true, []stdjson.RawMessage{turn.message()}, nil
}

// modelTurn puts together what one answer was: reasoning, a text, tool calls.
type modelTurn struct {
	said           content
	reasoning      strings.Builder
	details, calls []jsontext.Value
}

// ended reports whether an item cannot belong to this turn any more.
func (t *modelTurn) ended(it *item) bool {
	switch it.Type {
	case "reasoning":
		return len(t.calls) > 0 || len(t.said.parts) > 0
	case "function_call", "custom_tool_call":
		return false
	default:
		return len(t.calls) > 0
	}
}

func (t *modelTurn) add(it *item) error {
	switch it.Type {
	case "reasoning":
		text, err := texts(it.Content)
		if err == nil && text == "" {
			text, err = texts(it.Summary)
		}
		if err != nil {
			return err
		}
		t.reasoning.WriteString(text)
		if it.Encrypted != "" {
			t.details = append(t.details, newObject().str("type", "reasoning.encrypted").str("data", it.Encrypted).done())
		}
	case "function_call":
		name := it.Name
		if it.Namespace != "" {
			name = inNamespace(it.Namespace, it.Name)
		}
		t.calls = append(t.calls, call(it.CallID, name, it.Arguments))
	case "custom_tool_call":
		c := newObject().str("name", it.Name).raw("input", it.Input)
		t.calls = append(t.calls, newObject().str("id", it.CallID).str("type", "custom").raw("custom", c.done()).done())
	default:
		return readInputParts(it.Content, &t.said)
	}
	return nil
}

func (t *modelTurn) message() []byte {
	return assistant(&t.said, t.reasoning.String(), t.details, t.calls)
}

// message turns an item that the model did not make into a canonical message.
func (i *item) message() ([]byte, error) {
	var c content
	switch i.Type {
	case "", "message":
		role := i.Role
		switch role {
		case "developer": // the newer name of system, which open models know
			role = "system"
		case "user", "system":
		default:
			return nil, fmt.Errorf("role %q is not known: want user, assistant, system or developer", role)
		}
		err := readInputParts(i.Content, &c)
		return message(role, &c), err
	case "function_call_output", "custom_tool_call_output":
		err := readInputParts(i.Output, &c)
		return newObject().str("role", "tool").str("tool_call_id", i.CallID).raw("content", c.value()).done(), err
	case "item_reference":
		return nil, errors.New("item references are not supported: send the item")
	default:
		return nil, fmt.Errorf("an item of type %q is not supported", i.Type)
	}
}

// readInputParts reads a content; a string is one text.
func readInputParts(raw jsontext.Value, c *content) error {
	if raw.Kind() == '"' {
		return c.text(raw, nil)
	}
	return schema.EachElement(raw, func(v jsontext.Value) error {
		p := inputPart{text: jsontext.Value(`""`), refusal: jsontext.Value(`""`)}
		if err := p.read(v); err != nil {
			return err
		}
		switch p.kind {
		case "input_text", "output_text", "text":
			return c.text(p.text, p.extra)
		case "refusal":
			return c.text(p.refusal, nil)
		case "input_image":
			if p.imageURL == "" {
				c.file("", "", p.fileID, "")
			} else {
				c.image(p.imageURL, p.detail)
			}
		case "input_file":
			c.file(p.filename, cmp.Or(p.fileData, p.fileURL), p.fileID, "")
		default:
			return fmt.Errorf("a content part of type %q is not supported", p.kind)
		}
		return nil
	})
}

// inputPart is one part of a content.
type inputPart struct {
	kind, imageURL, detail              string
	fileID, fileData, fileURL, filename string
	text, refusal                       jsontext.Value // JSON strings
	extra                               jsontext.Value // an object of the other members; nil: none
}

func (p *inputPart) read(raw jsontext.Value) error {
	var unknown others
	err := eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			p.kind, err = unquote(v)
		case "text":
			p.text, err = literal(v)
		case "refusal":
			p.refusal, err = literal(v)
		case "image_url":
			p.imageURL, err = unquote(v)
		case "detail":
			p.detail, err = unquote(v)
		case "file_id":
			p.fileID, err = unquote(v)
		case "file_data":
			p.fileData, err = unquote(v)
		case "file_url":
			p.fileURL, err = unquote(v)
		case "filename":
			p.filename, err = unquote(v)
		default:
			unknown.add(name, v)
		}
		return err
	})
	p.extra = unknown.object()
	return err
}

// texts joins the texts of a list of parts; a string is one.
func texts(raw jsontext.Value) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	if raw.Kind() != '[' {
		return unquote(raw)
	}
	var all strings.Builder
	err := schema.EachElement(raw, func(v jsontext.Value) error {
		return eachField(v, func(name string, v jsontext.Value) error {
			if name != "text" {
				return nil
			}
			s, err := unquote(v)
			all.WriteString(s)
			return err
		})
	})
	return all.String(), err
}
