package gate

import (
	stdjson "encoding/json"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// geminiPart is one part of a content.
type geminiPart struct {
	text     text // nil: it has none
	thought  bool
	inline   *geminiBlob
	file     *geminiFile
	call     *geminiCall
	response *geminiCall
	other    jsontext.Value // an object of the other members; nil: none
}

func (p *geminiPart) read(raw jsontext.Value) error {
	var unknown others
	err := eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "text":
			if v.Kind() != 'n' {
				v, err = literal(v)
				p.text = text(v)
			}
		case "thought":
			p.thought, err = isTrue(v)
		case "thoughtSignature":
		case "inlineData", "inline_data":
			err = json.Unmarshal(v, &p.inline)
		case "fileData":
			err = json.Unmarshal(v, &p.file)
		case "functionCall":
			p.call, err = readGeminiCall(v)
		case "functionResponse":
			p.response, err = readGeminiCall(v)
		default:
			unknown.add(name, v)
		}
		return err
	})
	p.other = unknown.object()
	return err
}

func readGeminiParts(raw jsontext.Value) (parts []geminiPart, err error) {
	err = schema.EachElement(raw, func(v jsontext.Value) error {
		var p geminiPart
		err := p.read(v)
		if err != nil {
			err = fmt.Errorf("parts.%d: %w", len(parts), err)
		}
		parts = append(parts, p)
		return err
	})
	return parts, err
}

type geminiBlob struct {
	MimeType string `json:"mimeType"`
	Mime     string `json:"mime_type"`
	Data     string `json:"data"`
}

func (b *geminiBlob) add(c *content) {
	mime := b.MimeType + b.Mime
	url := "data:" + mime + ";base64," + b.Data
	if strings.HasPrefix(mime, "image/") {
		c.image(url, "")
	} else {
		c.file("", url, "", "")
	}
}

type geminiFile struct {
	MimeType string `json:"mimeType"`
	URI      string `json:"fileUri"`
}

// geminiCall is a function call or its response.
type geminiCall struct {
	id, name              string
	args, response, parts jsontext.Value
}

func readGeminiCall(raw jsontext.Value) (*geminiCall, error) {
	if raw.Kind() == 'n' {
		return nil, nil
	}
	var c geminiCall
	return &c, eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "id":
			c.id, err = unquote(v)
		case "name":
			c.name, err = unquote(v)
		case "args":
			c.args = v
		case "response":
			c.response = v
		case "parts":
			c.parts = v
		}
		return err
	})
}

type geminiContent struct {
	role  string
	parts []geminiPart
}

func (m *geminiContent) read(raw jsontext.Value) error {
	return schema.EachMember(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "role":
			if m.role, err = unquote(v); err != nil {
				err = fmt.Errorf("role: %w", err)
			}
		case "parts":
			m.parts, err = readGeminiParts(v)
		}
		return err
	})
}

// readGemini turns one content into canonical messages.
func readGemini(p *parts, i int) ([]stdjson.RawMessage, error) {
	var m geminiContent
	if err := m.read(p.item(i)); err != nil {
		return nil, err
	}
	switch m.role {
	case "model":
		one, err := readGeminiModel(&m, i)
		return []stdjson.RawMessage{one}, err
	case "", "user", "function":
	default:
		return nil, fmt.Errorf("role %q is not known: want user or model", m.role)
	}
	var out []stdjson.RawMessage
	var run content
	flush := func() {
		if len(run.parts) > 0 {
			out = append(out, message("user", &run))
			run = content{}
		}
	}
	ids := callIDs{p: p, before: i}
	for n := range m.parts {
		part := &m.parts[n]
		if part.response == nil {
			if err := part.add(&run); err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
			continue
		}
		flush()
		result, err := part.response.result()
		if err != nil {
			return nil, fmt.Errorf("parts.%d: %w", n, err)
		}
		id, err := ids.of(part.response)
		if err != nil {
			return nil, fmt.Errorf("parts.%d: %w", n, err)
		}
		out = append(out, newObject().str("role", "tool").str("tool_call_id", id).raw("content", result.value()).done())
	}
	flush()
	if len(out) == 0 {
		out = append(out, message("user", &run))
	}
	return out, nil
}

// result is what a function gave: the text of a response that is nothing but
// {"output": "..."}, as the API recommends, or else the object as JSON.
func (c *geminiCall) result() (*content, error) {
	var out content
	var only jsontext.Value
	members := 0
	err := schema.EachMember(c.response, func(name string, v jsontext.Value) error {
		if members++; name == "output" && v.Kind() == '"' {
			only = v
		}
		return nil
	})
	if err != nil || members != 1 || only == nil {
		text, err := compactObject(c.response)
		if err != nil {
			return nil, err
		}
		only = quoted(text)
	}
	if err := out.text(only, nil); err != nil {
		return nil, err
	}
	if len(c.parts) > 0 {
		parts, err := readGeminiParts(c.parts)
		if err != nil {
			return nil, err
		}
		for n := range parts {
			if err := parts[n].add(&out); err != nil {
				return nil, err
			}
		}
	}
	return &out, nil
}

// add appends a part that is neither a call nor a response.
func (p *geminiPart) add(c *content) error {
	switch {
	case p.text != nil:
		return c.text(jsontext.Value(p.text), p.other)
	case p.inline != nil:
		p.inline.add(c)
	case p.file != nil && strings.HasPrefix(p.file.MimeType, "image/"):
		c.image(p.file.URI, "")
	case p.file != nil:
		c.file("", p.file.URI, "", p.file.MimeType)
	case p.other != nil:
		return fmt.Errorf("a part like %.60s is not supported", p.other)
	}
	return nil
}

// ownCallID is the id of a function call that came without one: its place.
func ownCallID(content, call int) string { return fmt.Sprintf("call_%d_%d", content, call) }

func readGeminiModel(m *geminiContent, at int) (stdjson.RawMessage, error) {
	var said content
	var reasoning strings.Builder
	var run text // a streamed text comes back in its pieces
	var calls []jsontext.Value
	flush := func() error {
		if len(run) == 0 {
			return nil
		}
		err := said.text(append(append(jsontext.Value{'"'}, run...), '"'), nil)
		run = run[:0]
		return err
	}
	for n := range m.parts {
		part := &m.parts[n]
		plain := part.text != nil && !part.thought && part.other == nil && part.call == nil
		if plain {
			run = append(run, part.text.inner()...)
			continue
		}
		if err := flush(); err != nil {
			return nil, err
		}
		switch {
		case part.call != nil:
			id := part.call.id
			if id == "" {
				id = ownCallID(at, len(calls))
			}
			arguments, err := compactObject(part.call.args)
			if err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
			calls = append(calls, call(id, part.call.name, quoted(arguments)))
		case part.thought && part.text != nil:
			thought, err := unquote(jsontext.Value(part.text))
			if err != nil {
				return nil, err
			}
			reasoning.WriteString(thought)
		default:
			if err := part.add(&said); err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return assistant(&said, reasoning.String(), nil, calls), nil
}

// callIDs finds the call that a response without an id belongs to: the first
// of its name, in the content of the model before it, that has no response
// yet.
type callIDs struct {
	p      *parts
	before int
	open   []geminiCall
	read   bool
}

func (c *callIDs) of(r *geminiCall) (string, error) {
	if r.id != "" {
		return r.id, nil
	}
	for at := c.before - 1; at >= 0 && !c.read; at-- {
		var m geminiContent
		if err := m.read(c.p.item(at)); err != nil {
			return "", err
		}
		if c.read = m.role == "model"; !c.read {
			continue
		}
		for n := range m.parts {
			if call := m.parts[n].call; call != nil {
				if call.id == "" {
					call.id = ownCallID(at, len(c.open))
				}
				c.open = append(c.open, *call)
			}
		}
	}
	for i, call := range c.open {
		if call.name == r.name {
			c.open = append(c.open[:i:i], c.open[i+1:]...)
			return call.id, nil
		}
	}
	return "", fmt.Errorf("the response of %q has no call before it", r.name)
}
