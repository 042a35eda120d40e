package anthropic

import (
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
)

// decoder converts the requests of one session.
func readItem(p dialect.Parts, i int) (dialect.Group, error) {
	messages, err := readMessage(p.Item(i))
	if err != nil {
		err = fmt.Errorf("messages.%d: %w", i, err)
	}
	return dialect.Group{Messages: messages}, err
}

func request(r *http.Request, c dialect.Converted) dialect.Request {
	q := dialect.Request{Call: c.Call, Encoding: encoding{}}
	if strings.HasSuffix(r.URL.Path, "/count_tokens") {
		q.Count = func(n int64) []byte { return fmt.Appendf(nil, `{"input_tokens":%d}`, n) }
	}
	return q
}

// readMember reads a member other than the conversation and the tools.
func readMember(m *dialect.Members, name string, value jsontext.Value) (err error) {
	switch name {
	case "messages":
		err = errors.New("want an array")
	case "model":
		m.Model, err = rawjson.Unquote(value)
	case "stream":
		m.Stream = value.Kind() == 't'
	case "system":
		m.First, err = readSystem(value)
	case "tool_choice":
		err = readChoice(value, m.Params)
	case "stop_sequences":
		m.Params["stop"] = stdjson.RawMessage(value)
	case "output_config":
		err = readOutput(value, m.Params)
	case "output_format": // older name of output_config.format
		err = readFormat(value, m.Params)
	case "cache_control":
	default:
		m.Params[name] = stdjson.RawMessage(value)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
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
	Context   jsontext.Value // a JSON string, of a document; nil: none
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
	var unknown rawjson.Others
	err := rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			b.Type, err = rawjson.Unquote(v)
		case "text":
			b.Text, err = rawjson.Literal(v)
		case "thinking":
			b.Thinking, err = rawjson.Unquote(v)
		case "signature":
			b.Signature, err = rawjson.Unquote(v)
		case "data":
			b.Data, err = rawjson.Unquote(v)
		case "id":
			b.ID, err = rawjson.Unquote(v)
		case "name":
			b.Name, err = rawjson.Unquote(v)
		case "input":
			b.Input = v
		case "tool_use_id":
			b.ToolUseID, err = rawjson.Unquote(v)
		case "content":
			b.Content = v
		case "is_error":
			b.IsError, err = rawjson.IsTrue(v)
		case "title":
			b.Title, err = rawjson.Unquote(v)
		case "context":
			if b.Context = nil; v.Kind() != 'n' {
				b.Context, err = rawjson.Literal(v)
			}
		case "source":
			err = rawjson.Plain(json.Unmarshal(v, &b.Source))
		case "cache_control":
		default:
			unknown.Add(name, v)
		}
		return err
	})
	b.Extra = unknown.Object()
	return err
}

// readMessage converts one message to canonical ones: each tool result
// becomes a message.
func readMessage(raw jsontext.Value) ([]stdjson.RawMessage, error) {
	var role string
	var body jsontext.Value
	err := rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "role":
			role, err = rawjson.Unquote(v)
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
		return nil, fmt.Errorf("role %.80q is not known: want user, assistant or system", role)
	}
	var out []stdjson.RawMessage
	var run canonical.Content // of blocks that are not tool results
	flush := func() {
		if !run.Empty() {
			out = append(out, canonical.Message(role, &run))
			run = canonical.Content{}
		}
	}
	err = eachBlock(body, func(b *block) error {
		if b.Type != "tool_result" {
			return b.add(&run)
		}
		flush()
		var result canonical.Content
		if len(b.Content) > 0 {
			if err := readBlocks(b.Content, &result); err != nil {
				return err
			}
		}
		o := canonical.Result(b.ToolUseID, &result)
		if b.IsError {
			o.Raw("is_error", []byte("true"))
		}
		err := canonical.ResultExtra(o, b.Extra)
		out = append(out, o.Done())
		return err
	})
	flush()
	if err == nil && len(out) == 0 {
		out = append(out, canonical.Message(role, &run))
	}
	return out, err
}

// readAssistant converts an assistant message to canonical form.
func readAssistant(raw jsontext.Value) (stdjson.RawMessage, error) {
	var answer canonical.Content
	var reasoning strings.Builder
	var details, calls []jsontext.Value
	err := eachBlock(raw, func(b *block) error {
		switch b.Type {
		case "thinking":
			reasoning.WriteString(b.Thinking)
			if b.Signature != "" && b.Signature != ownSignature {
				details = append(details, rawjson.NewObject().Str("type", "reasoning.text").Str("text", b.Thinking).Str("signature", b.Signature).Done())
			}
		case "redacted_thinking":
			details = append(details, rawjson.NewObject().Str("type", "reasoning.encrypted").Str("data", b.Data).Done())
		case "tool_use":
			arguments, err := canonical.CompactObject(b.Input)
			if err != nil {
				return err
			}
			calls = append(calls, canonical.Call(b.ID, b.Name, rawjson.Quote(arguments)))
		default:
			return b.add(&answer)
		}
		return nil
	})
	return canonical.Assistant(&answer, reasoning.String(), details, calls), err
}

// eachBlock calls f for each block of a content; a string is one text block.
func eachBlock(raw jsontext.Value, f func(*block) error) error {
	if raw.Kind() == '"' {
		return f(&block{Type: "text", Text: raw})
	}
	i := 0
	return rawjson.EachElement(raw, func(v jsontext.Value) error {
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

func readBlocks(raw jsontext.Value, into *canonical.Content) error {
	return eachBlock(raw, func(b *block) error { return b.add(into) })
}

// add appends a block of a type that both roles may have.
func (b *block) add(c *canonical.Content) error {
	switch b.Type {
	case "text":
		return c.Text(b.Text, b.Extra)
	case "image":
		switch b.Source.Type {
		case "base64":
			return c.Image("data:"+b.Source.MediaType+";base64,"+b.Source.Data, "", b.Extra)
		case "url":
			return c.Image(b.Source.URL, "", b.Extra)
		case "file":
			return c.File("", "", b.Source.FileID, "", b.Extra)
		default:
			return fmt.Errorf("an image from a source of type %.80q is not supported", b.Source.Type)
		}
	case "document":
		if b.Context != nil {
			if err := c.Text(b.Context, nil); err != nil {
				return err
			}
		}
		switch b.Source.Type {
		case "base64":
			return c.File(b.Title, "data:"+b.Source.MediaType+";base64,"+b.Source.Data, "", "", b.Extra)
		case "text":
			return c.File(b.Title, "data:text/plain;charset=utf-8;base64,"+base64.StdEncoding.EncodeToString([]byte(b.Source.Data)), "", "", b.Extra)
		case "url":
			return c.File(b.Title, b.Source.URL, "", "", b.Extra)
		case "file":
			return c.File(b.Title, "", b.Source.FileID, "", b.Extra)
		case "content":
			return eachBlock(b.Source.Content, func(b *block) error {
				if b.Type == "document" { // each would be read once for every document around it
					return errors.New("a document in a document is not supported")
				}
				return b.add(c)
			})
		default:
			return fmt.Errorf("a document from a source of type %.80q is not supported", b.Source.Type)
		}
	default:
		return fmt.Errorf("a block of type %.80q is not supported", b.Type)
	}
}

// readSystem converts a system prompt to a message; it returns none if the
// prompt is empty.
func readSystem(raw jsontext.Value) ([]stdjson.RawMessage, error) {
	var system canonical.Content
	if err := readBlocks(raw, &system); err != nil || system.Empty() {
		return nil, err
	}
	return []stdjson.RawMessage{canonical.Message("system", &system)}, nil
}

func readTools(raw jsontext.Value) (dialect.Tools, error) {
	var tools []jsontext.Value
	err := rawjson.EachElement(raw, func(v jsontext.Value) error {
		var t struct {
			Type        string         `json:"type"`
			Name        string         `json:"name"`
			Description jsontext.Value `json:"description"`
			Schema      jsontext.Value `json:"input_schema"`
			Strict      jsontext.Value `json:"strict"`
			Other       jsontext.Value `json:",embed"`
		}
		if err := json.Unmarshal(v, &t); err != nil {
			return rawjson.Plain(err)
		}
		if t.Type != "" && t.Type != "custom" {
			var ok bool
			if t.Description, t.Schema, ok = ownTool(t.Type); !ok {
				return fmt.Errorf("%.80q is of type %.80q, which Anthropic's servers run or only its models know: only tools with a schema, bash and text_editor are supported", t.Name, t.Type)
			}
		}
		more := rawjson.NewObject()
		if err := more.Extra(t.Other, "cache_control", "eager_input_streaming"); err != nil {
			return err
		}
		tools = append(tools, canonical.Function(t.Name, t.Description, t.Schema, t.Strict, more))
		return nil
	})
	if len(tools) == 0 {
		return dialect.Tools{}, err
	}
	return dialect.Tools{List: rawjson.List(tools)}, err
}

func readChoice(raw jsontext.Value, params map[string]stdjson.RawMessage) error {
	var c struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Parallel *bool  `json:"disable_parallel_tool_use"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return rawjson.Plain(err)
	}
	switch c.Type {
	case "auto", "none":
		params["tool_choice"] = rawjson.Quote(c.Type)
	case "any":
		params["tool_choice"] = rawjson.Quote("required")
	case "tool":
		params["tool_choice"] = canonical.ChooseFunction(c.Name)
	default:
		return fmt.Errorf("type %.80q is not known: want auto, any, tool or none", c.Type)
	}
	if c.Parallel != nil {
		params["parallel_tool_calls"] = fmt.Append(nil, !*c.Parallel)
	}
	return nil
}
