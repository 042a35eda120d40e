package gemini

import (
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
)

// part is one part of a content.
type part struct {
	text     canonical.Text // nil: none
	thought  bool
	inline   *blob
	file     *file
	call     *functionCall
	response *functionCall
	other    jsontext.Value // an object of the other members; nil: none
}

func (p *part) read(raw jsontext.Value) error {
	var unknown rawjson.Others
	err := rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "text":
			if v.Kind() != 'n' {
				v, err = rawjson.Literal(v)
				p.text = canonical.Text(v)
			}
		case "thought":
			p.thought, err = rawjson.IsTrue(v)
		case "thoughtSignature":
		case "inlineData", "inline_data":
			err = rawjson.Plain(json.Unmarshal(v, &p.inline))
		case "fileData":
			err = rawjson.Plain(json.Unmarshal(v, &p.file))
		case "functionCall":
			p.call, err = readCall(v)
		case "functionResponse":
			p.response, err = readCall(v)
		default:
			unknown.Add(name, v)
		}
		return err
	})
	p.other = unknown.Object()
	return err
}

func readParts(raw jsontext.Value) (parts []part, err error) {
	err = rawjson.EachElement(raw, func(v jsontext.Value) error {
		var p part
		err := p.read(v)
		if err != nil {
			err = fmt.Errorf("parts.%d: %w", len(parts), err)
		}
		parts = append(parts, p)
		return err
	})
	return parts, err
}

type blob struct {
	MimeType string `json:"mimeType"`
	Mime     string `json:"mime_type"`
	Data     string `json:"data"`
	Name     string `json:"displayName"`
}

func (b *blob) add(c *canonical.Content, extra jsontext.Value) error {
	mime := b.MimeType + b.Mime
	url := "data:" + mime + ";base64," + b.Data
	if strings.HasPrefix(mime, "image/") {
		return c.Image(url, "", extra)
	}
	return c.File(b.Name, url, "", "", extra)
}

type file struct {
	MimeType string `json:"mimeType"`
	URI      string `json:"fileUri"`
	Name     string `json:"displayName"`
}

// functionCall is a function call or its response.
type functionCall struct {
	id, name              string
	args, response, parts jsontext.Value
	other                 jsontext.Value // an object of the other members; nil: none
}

func readCall(raw jsontext.Value) (*functionCall, error) {
	if raw.Kind() == 'n' {
		return nil, nil
	}
	var c functionCall
	var unknown rawjson.Others
	err := rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "id":
			c.id, err = rawjson.Unquote(v)
		case "name":
			c.name, err = rawjson.Unquote(v)
		case "args":
			c.args = v
		case "response":
			c.response = v
		case "parts":
			c.parts = v
		default:
			unknown.Add(name, v)
		}
		return err
	})
	c.other = unknown.Object()
	return &c, err
}

type content struct {
	role  string
	parts []part
}

func (m *content) read(raw jsontext.Value) error {
	return rawjson.EachMember(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "role":
			if m.role, err = rawjson.Unquote(v); err != nil {
				err = fmt.Errorf("role: %w", err)
			}
		case "parts":
			m.parts, err = readParts(v)
		}
		return err
	})
}

// readContent converts one content to canonical messages.
func readContent(p dialect.Parts, i int, ids *callIDs) ([]stdjson.RawMessage, error) {
	var m content
	if err := m.read(p.Item(i)); err != nil {
		return nil, err
	}
	ids.at, ids.used = i, nil
	switch m.role {
	case "model":
		one, err := readModel(&m, i)
		return []stdjson.RawMessage{one}, err
	case "", "user", "function":
	default:
		return nil, fmt.Errorf("role %.80q is not known: want user or model", m.role)
	}
	var out []stdjson.RawMessage
	var run canonical.Content
	flush := func() {
		if !run.Empty() {
			out = append(out, canonical.Message("user", &run))
			run = canonical.Content{}
		}
	}
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
		id, err := ids.of(p, part.response)
		if err != nil {
			return nil, fmt.Errorf("parts.%d: %w", n, err)
		}
		o := canonical.Result(id, result)
		if err := canonical.ResultExtra(o, part.response.other); err != nil {
			return nil, fmt.Errorf("parts.%d: %w", n, err)
		}
		out = append(out, o.Done())
	}
	flush()
	if len(out) == 0 {
		out = append(out, canonical.Message("user", &run))
	}
	return out, nil
}

// result returns the result of a function. For a response with the single
// member {"output": "..."}, which the API recommends, it is that text,
// otherwise the object as JSON.
func (c *functionCall) result() (*canonical.Content, error) {
	var out canonical.Content
	var only jsontext.Value
	members := 0
	err := rawjson.EachMember(c.response, func(name string, v jsontext.Value) error {
		if members++; name == "output" && v.Kind() == '"' {
			only = v
		}
		return nil
	})
	if err != nil || members != 1 || only == nil {
		text, err := canonical.CompactObject(c.response)
		if err != nil {
			return nil, err
		}
		only = rawjson.Quote(text)
	}
	if err := out.Text(only, nil); err != nil {
		return nil, err
	}
	if len(c.parts) > 0 {
		parts, err := readParts(c.parts)
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
func (p *part) add(c *canonical.Content) error {
	switch {
	case p.call != nil:
		return errors.New("a functionCall is supported in a content of the model only")
	case p.response != nil:
		return errors.New("a functionResponse is supported in a content of the user only, and in no other functionResponse")
	case p.text != nil:
		return c.Text(jsontext.Value(p.text), p.other)
	case p.inline != nil:
		return p.inline.add(c, p.other)
	case p.file != nil && strings.HasPrefix(p.file.MimeType, "image/"):
		return c.Image(p.file.URI, "", p.other)
	case p.file != nil:
		return c.File(p.file.Name, p.file.URI, "", p.file.MimeType, p.other)
	case p.other != nil:
		return fmt.Errorf("a part like %.60s is not supported", p.other)
	}
	return nil
}

// ownCallID derives the id of a function call without one from its place.
func ownCallID(content, call int) string { return fmt.Sprintf("call_%d_%d", content, call) }

func readModel(m *content, at int) (stdjson.RawMessage, error) {
	var answer canonical.Content
	var reasoning strings.Builder
	var run canonical.Text // joins the pieces of a streamed text
	var calls []jsontext.Value
	flush := func() error {
		if len(run) == 0 {
			return nil
		}
		err := answer.Text(append(append(jsontext.Value{'"'}, run...), '"'), nil)
		run = run[:0]
		return err
	}
	for n := range m.parts {
		part := &m.parts[n]
		plain := part.text != nil && !part.thought && part.other == nil && part.call == nil
		if plain {
			run = append(run, part.text.Inner()...)
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
			arguments, err := canonical.CompactObject(part.call.args)
			if err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
			calls = append(calls, canonical.Call(id, part.call.name, rawjson.Quote(arguments)))
		case part.thought && part.text != nil:
			thought, err := rawjson.Unquote(jsontext.Value(part.text))
			if err != nil {
				return nil, err
			}
			reasoning.WriteString(thought)
		default:
			if err := part.add(&answer); err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return canonical.Assistant(&answer, reasoning.String(), nil, calls), nil
}

// callIDs finds the calls of responses without an id: the first call with the
// name in the preceding content of the model that has no response in the same
// content yet. It reads each content once.
type callIDs struct {
	at    int                 // the content that is read
	until int                 // contents before it are known: they are no model's, back to the one with the calls
	calls map[string][]string // ids by name
	used  map[string]int      // calls by name that have a response in the content at
}

func (c *callIDs) of(p dialect.Parts, r *functionCall) (string, error) {
	if r.id != "" {
		return r.id, nil
	}
	for at := c.at - 1; at >= c.until; at-- {
		var m content
		if err := m.read(p.Item(at)); err != nil {
			return "", err
		}
		if m.role != "model" {
			continue
		}
		c.calls = map[string][]string{}
		n := 0
		for i := range m.parts {
			if call := m.parts[i].call; call != nil {
				c.calls[call.name] = append(c.calls[call.name], cmp.Or(call.id, ownCallID(at, n)))
				n++
			}
		}
		break
	}
	c.until = c.at
	n := c.used[r.name]
	if n >= len(c.calls[r.name]) {
		return "", fmt.Errorf("the response of %.80q has no call before it", r.name)
	}
	if c.used == nil {
		c.used = map[string]int{}
	}
	c.used[r.name]++
	return c.calls[r.name][n], nil
}
