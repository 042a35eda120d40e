package responses

import (
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
)

// item is one element of a request's input.
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
	return rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			i.Type, err = rawjson.Unquote(v)
		case "role":
			i.Role, err = rawjson.Unquote(v)
		case "content":
			i.Content = v
		case "call_id":
			i.CallID, err = rawjson.Unquote(v)
		case "name":
			i.Name, err = rawjson.Unquote(v)
		case "namespace":
			i.Namespace, err = rawjson.Unquote(v)
		case "arguments":
			i.Arguments, err = rawjson.Literal(v)
		case "input":
			i.Input, err = rawjson.Literal(v)
		case "output":
			i.Output = v
		case "encrypted_content":
			i.Encrypted, err = rawjson.Unquote(v)
		case "summary":
			i.Summary = v
		}
		return err
	})
}

// toolName returns the canonical name of the tool.
func (i *item) toolName() string {
	if i.Namespace == "" {
		return i.Name
	}
	return inNamespace(i.Namespace, i.Name)
}

// byModel reports whether the model made the item. Such items in a row become
// one message.
func (i *item) byModel() bool {
	switch i.Type {
	case "function_call", "custom_tool_call", "reasoning":
		return true
	case "", "message":
		return i.Role == "assistant"
	}
	return false
}

// readItems converts the items that begin at from to canonical messages.
func readItems(p dialect.Parts, from int) (dialect.Group, error) {
	var turn modelTurn
	end := from
	for ; end < p.Len(); end++ {
		var it item
		if err := it.read(p.Item(end)); err != nil {
			return dialect.Group{}, fmt.Errorf("input.%d: %w", end, err)
		}
		if it.byModel() {
			// An item after a call or a text may begin a new turn.
			if turn.ended(&it) {
				break
			}
			if err := turn.add(&it); err != nil {
				return dialect.Group{}, fmt.Errorf("input.%d: %w", end, err)
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
		return dialect.Group{Messages: []stdjson.RawMessage{one}}, err
	}
	return dialect.Group{Messages: []stdjson.RawMessage{turn.message()}, End: end, Open: true}, nil
}

// modelTurn joins the items of one answer: reasoning, a text, tool calls.
type modelTurn struct {
	answer         canonical.Content
	reasoning      strings.Builder
	details, calls []jsontext.Value
}

// ended reports whether an item cannot belong to this turn.
func (t *modelTurn) ended(it *item) bool {
	switch it.Type {
	case "reasoning":
		return len(t.calls) > 0 || !t.answer.Empty()
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
			t.details = append(t.details, rawjson.NewObject().Str("type", "reasoning.encrypted").Str("data", it.Encrypted).Done())
		}
	case "function_call":
		t.calls = append(t.calls, canonical.Call(it.CallID, it.toolName(), it.Arguments))
	case "custom_tool_call":
		t.calls = append(t.calls, canonical.CustomCall(it.CallID, it.toolName(), it.Input))
	default:
		return readInputParts(it.Content, &t.answer)
	}
	return nil
}

func (t *modelTurn) message() []byte {
	return canonical.Assistant(&t.answer, t.reasoning.String(), t.details, t.calls)
}

// message converts an item that the model did not make to a canonical message.
func (i *item) message() ([]byte, error) {
	var c canonical.Content
	switch i.Type {
	case "", "message":
		role := i.Role
		switch role {
		case "developer": // the newer name of system; open models know system only
			role = "system"
		case "user", "system":
		default:
			return nil, fmt.Errorf("role %.80q is not known: want user, assistant, system or developer", role)
		}
		err := readInputParts(i.Content, &c)
		return canonical.Message(role, &c), err
	case "function_call_output", "custom_tool_call_output":
		err := readInputParts(i.Output, &c)
		return canonical.Result(i.CallID, &c).Done(), err
	case "item_reference":
		return nil, errors.New("item references are not supported: send the item")
	default:
		return nil, fmt.Errorf("an item of type %.80q is not supported", i.Type)
	}
}

// readInputParts reads a content; a string is one text.
func readInputParts(raw jsontext.Value, c *canonical.Content) error {
	if raw.Kind() == '"' {
		return c.Text(raw, nil)
	}
	return rawjson.EachElement(raw, func(v jsontext.Value) error {
		p := inputPart{text: jsontext.Value(`""`), refusal: jsontext.Value(`""`)}
		if err := p.read(v); err != nil {
			return err
		}
		switch p.kind {
		case "input_text", "output_text", "text":
			return c.Text(p.text, p.extra)
		case "refusal":
			return c.Text(p.refusal, nil)
		case "input_image":
			if p.imageURL == "" {
				return c.File("", "", p.fileID, "", p.extra)
			}
			return c.Image(p.imageURL, p.detail, p.extra)
		case "input_file":
			return c.File(p.filename, cmp.Or(p.fileData, p.fileURL), p.fileID, "", p.extra)
		default:
			return fmt.Errorf("a content part of type %.80q is not supported", p.kind)
		}
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
	var unknown rawjson.Others
	err := rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			p.kind, err = rawjson.Unquote(v)
		case "text":
			p.text, err = rawjson.Literal(v)
		case "refusal":
			p.refusal, err = rawjson.Literal(v)
		case "image_url":
			p.imageURL, err = rawjson.Unquote(v)
		case "detail":
			p.detail, err = rawjson.Unquote(v)
		case "file_id":
			p.fileID, err = rawjson.Unquote(v)
		case "file_data":
			p.fileData, err = rawjson.Unquote(v)
		case "file_url":
			p.fileURL, err = rawjson.Unquote(v)
		case "filename":
			p.filename, err = rawjson.Unquote(v)
		default:
			unknown.Add(name, v)
		}
		return err
	})
	p.extra = unknown.Object()
	return err
}

// texts joins the texts of a list of parts, or returns a string's text.
func texts(raw jsontext.Value) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	if raw.Kind() != '[' {
		return rawjson.Unquote(raw)
	}
	var all strings.Builder
	err := rawjson.EachElement(raw, func(v jsontext.Value) error {
		return rawjson.EachField(v, func(name string, v jsontext.Value) error {
			if name != "text" {
				return nil
			}
			s, err := rawjson.Unquote(v)
			all.WriteString(s)
			return err
		})
	})
	return all.String(), err
}
