package gate

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// messagesDecoder turns requests of the Messages API into canonical calls.
type messagesDecoder struct {
	splitter
	tools  memo[stdjson.RawMessage]
	named  schema.Call          // what the rest of the newest body says, and
	system []stdjson.RawMessage // its system prompt as a message, or none
}

// Close implements Decoder.
func (d *messagesDecoder) Close() { d.forget() }

func (d *messagesDecoder) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop()
	d.tools, d.named, d.system = memo[stdjson.RawMessage]{}, schema.Call{}, nil
}

// Decode implements Decoder.
func (d *messagesDecoder) Decode(r *http.Request, body Body) (Request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, keep, err := d.split(body)
	if err != nil {
		return Request{}, fmt.Errorf("the body is not a messages request: %w", err)
	}
	err = p.fold(keep, func(i int) (int, bool, []stdjson.RawMessage, error) {
		messages, err := readAnthropic(p.item(i))
		if err != nil {
			err = fmt.Errorf("messages.%d: %w", i, err)
		}
		return i + 1, false, messages, err
	})
	if err != nil {
		return Request{}, err
	}
	c, err := d.call(p)
	if err != nil {
		return Request{}, err
	}
	req := d.request(p, d, cap(d.tools.raw), Request{Call: c, Encoding: messagesEncoding{}})
	if r != nil && strings.HasSuffix(r.URL.Path, "/count_tokens") {
		req.Count = func(n int64) []byte { return fmt.Appendf(nil, `{"input_tokens":%d}`, n) }
	}
	return req, nil
}

// call is a body in canonical form.
func (d *messagesDecoder) call(p *parts) (schema.Call, error) {
	if !d.rest.same(p) {
		if err := d.members(p); err != nil {
			return schema.Call{}, err
		}
		d.rest.note(p)
	}
	c := d.named
	if len(p.items) == 0 {
		return c, errors.New("messages: want at least one")
	}
	c.Messages = p.messages(d.system...)
	var err error
	c.Tools, err = d.tools.member(p, anthropicTools)
	return c, err
}

// members reads what a request says beside its conversation and its tools.
func (d *messagesDecoder) members(p *parts) error {
	c := schema.Call{Params: schema.SortedMap[stdjson.RawMessage]{}}
	var system stdjson.RawMessage
	err := p.eachMember(func(name string, value jsontext.Value) (err error) {
		switch name {
		case p.array:
			return errors.New("messages: want an array")
		case "model":
			c.Model, err = unquote(value)
		case "stream":
			c.Stream = value.Kind() == 't'
		case "system":
			system, err = anthropicSystem(value)
		case "tools":
		case "tool_choice":
			err = anthropicChoice(value, c.Params)
		case "stop_sequences":
			c.Params["stop"] = stdjson.RawMessage(value)
		case "cache_control":
		default:
			c.Params[name] = stdjson.RawMessage(value)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	ownParams(c.Params)
	d.named, d.system = c, nil
	if len(system) > 0 {
		d.system = []stdjson.RawMessage{system}
	}
	return nil
}

// block is one block of a message's content.
type block struct {
	Type      string
	Text      jsontext.Value // a JSON string
	Thinking  string
	Signature string
	Data      string
	ID        string
	Name      string
	Input     jsontext.Value
	ToolUseID string
	Content   jsontext.Value
	IsError   bool
	Title     string
	Source    struct {
		Type      string         `json:"type"`
		MediaType string         `json:"media_type"`
		Data      string         `json:"data"`
		URL       string         `json:"url"`
		FileID    string         `json:"file_id"`
		Content   jsontext.Value `json:"content"`
	}
	Extra jsontext.Value // an object of the other members; nil: none
}

func (b *block) read(raw jsontext.Value) error {
	var unknown others
	err := eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			b.Type, err = unquote(v)
		case "text":
			b.Text, err = literal(v)
		case "thinking":
			b.Thinking, err = unquote(v)
		case "signature":
			b.Signature, err = unquote(v)
		case "data":
			b.Data, err = unquote(v)
		case "id":
			b.ID, err = unquote(v)
		case "name":
			b.Name, err = unquote(v)
		case "input":
			b.Input = v
		case "tool_use_id":
			b.ToolUseID, err = unquote(v)
		case "content":
			b.Content = v
		case "is_error":
			b.IsError, err = isTrue(v)
		case "title":
			b.Title, err = unquote(v)
		case "source":
			err = json.Unmarshal(v, &b.Source)
		case "cache_control":
		default:
			unknown.add(name, v)
		}
		return err
	})
	b.Extra = unknown.object()
	return err
}

// readAnthropic turns one message into canonical ones: results of tools are
// messages of their own there.
func readAnthropic(raw jsontext.Value) ([]stdjson.RawMessage, error) {
	var role string
	var body jsontext.Value
	err := eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "role":
			role, err = unquote(v)
		case "content":
			body = v
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	switch role {
	case "assistant":
		one, err := readAssistant(body)
		return []stdjson.RawMessage{one}, err
	case "system", "user":
	default:
		return nil, fmt.Errorf("role %q is not known: want user, assistant or system", role)
	}
	var out []stdjson.RawMessage
	var run content // of blocks that are no results
	flush := func() {
		if len(run.parts) > 0 {
			out = append(out, message(role, &run))
			run = content{}
		}
	}
	err = eachBlock(body, func(b *block) error {
		if b.Type != "tool_result" {
			return b.add(&run)
		}
		flush()
		var result content
		if len(b.Content) > 0 {
			if err := readBlocks(b.Content, &result); err != nil {
				return err
			}
		}
		o := newObject().str("role", "tool").str("tool_call_id", b.ToolUseID).raw("content", result.value())
		if b.IsError {
			o.raw("is_error", []byte("true"))
		}
		err := o.extra(b.Extra)
		out = append(out, o.done())
		return err
	})
	flush()
	if err == nil && len(out) == 0 {
		out = append(out, message(role, &run))
	}
	return out, err
}

// readAssistant turns what the model said into one canonical message.
func readAssistant(raw jsontext.Value) (stdjson.RawMessage, error) {
	var said content
	var reasoning strings.Builder
	var details, calls []jsontext.Value
	err := eachBlock(raw, func(b *block) error {
		switch b.Type {
		case "thinking":
			reasoning.WriteString(b.Thinking)
			if b.Signature != "" && b.Signature != ownSignature {
				details = append(details, newObject().str("type", "reasoning.text").str("text", b.Thinking).str("signature", b.Signature).done())
			}
		case "redacted_thinking":
			details = append(details, newObject().str("type", "reasoning.encrypted").str("data", b.Data).done())
		case "tool_use":
			arguments, err := compactObject(b.Input)
			if err != nil {
				return err
			}
			calls = append(calls, call(b.ID, b.Name, quoted(arguments)))
		default:
			return b.add(&said)
		}
		return nil
	})
	return assistant(&said, reasoning.String(), details, calls), err
}

// assistant is a canonical message of the model.
func assistant(said *content, reasoning string, details, calls []jsontext.Value) []byte {
	o := newObject().str("role", "assistant")
	if len(said.parts) == 0 && len(calls) > 0 {
		o.raw("content", []byte("null"))
	} else {
		o.raw("content", said.value())
	}
	if reasoning != "" {
		o.str("reasoning_content", reasoning)
	}
	if len(details) > 0 {
		o.raw("reasoning_details", list(details))
	}
	if len(calls) > 0 {
		o.raw("tool_calls", list(calls))
	}
	return o.done()
}

// eachBlock calls f for each block of a content; a string is one of text.
func eachBlock(raw jsontext.Value, f func(*block) error) error {
	if raw.Kind() == '"' {
		return f(&block{Type: "text", Text: raw})
	}
	i := 0
	return schema.EachElement(raw, func(v jsontext.Value) error {
		b := block{Text: jsontext.Value(`""`)}
		err := b.read(v)
		if err == nil {
			err = f(&b)
		}
		if err != nil {
			err = fmt.Errorf("content.%d: %w", i, err)
		}
		i++
		return err
	})
}

func readBlocks(raw jsontext.Value, into *content) error {
	return eachBlock(raw, func(b *block) error { return b.add(into) })
}

// add appends a block that both roles may have.
func (b *block) add(c *content) error {
	switch b.Type {
	case "text":
		return c.text(b.Text, b.Extra)
	case "image":
		switch b.Source.Type {
		case "base64":
			c.image("data:"+b.Source.MediaType+";base64,"+b.Source.Data, "")
		case "url":
			c.image(b.Source.URL, "")
		case "file":
			c.file("", "", b.Source.FileID, "")
		default:
			return fmt.Errorf("an image from a source of type %q is not supported", b.Source.Type)
		}
	case "document":
		switch b.Source.Type {
		case "base64":
			c.file(b.Title, "data:"+b.Source.MediaType+";base64,"+b.Source.Data, "", "")
		case "text":
			c.file(b.Title, "data:text/plain,"+b.Source.Data, "", "")
		case "url":
			c.file(b.Title, b.Source.URL, "", "")
		case "file":
			c.file(b.Title, "", b.Source.FileID, "")
		case "content":
			return readBlocks(b.Source.Content, c)
		default:
			return fmt.Errorf("a document from a source of type %q is not supported", b.Source.Type)
		}
	default:
		return fmt.Errorf("a block of type %q is not supported", b.Type)
	}
	return nil
}

// anthropicSystem turns a system prompt into a message; nil if it is empty.
func anthropicSystem(raw jsontext.Value) (stdjson.RawMessage, error) {
	var system content
	if err := readBlocks(raw, &system); err != nil || len(system.parts) == 0 {
		return nil, err
	}
	return message("system", &system), nil
}

func anthropicTools(raw jsontext.Value) (stdjson.RawMessage, error) {
	var tools []jsontext.Value
	err := schema.EachElement(raw, func(v jsontext.Value) error {
		var t struct {
			Type        string         `json:"type"`
			Name        string         `json:"name"`
			Description jsontext.Value `json:"description"`
			Schema      jsontext.Value `json:"input_schema"`
			Strict      jsontext.Value `json:"strict"`
		}
		if err := json.Unmarshal(v, &t); err != nil {
			return err
		}
		if t.Type != "" && t.Type != "custom" {
			return fmt.Errorf("%q is of type %q, which Anthropic's servers run: only tools that the agent runs are supported", t.Name, t.Type)
		}
		tools = append(tools, function(t.Name, t.Description, t.Schema, t.Strict))
		return nil
	})
	if len(tools) == 0 {
		return nil, err
	}
	return list(tools), err
}

func anthropicChoice(raw jsontext.Value, params map[string]stdjson.RawMessage) error {
	var c struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Parallel *bool  `json:"disable_parallel_tool_use"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return err
	}
	switch c.Type {
	case "auto", "none":
		params["tool_choice"] = quoted(c.Type)
	case "any":
		params["tool_choice"] = quoted("required")
	case "tool":
		params["tool_choice"] = chooseFunction(c.Name)
	default:
		return fmt.Errorf("type %q is not known: want auto, any, tool or none", c.Type)
	}
	if c.Parallel != nil {
		params["parallel_tool_calls"] = fmt.Append(nil, !*c.Parallel)
	}
	return nil
}

func chooseFunction(name string) []byte {
	return newObject().str("type", "function").raw("function", newObject().str("name", name).done()).done()
}
