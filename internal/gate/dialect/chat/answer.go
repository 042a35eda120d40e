// Package chat is the dialect of OpenAI's chat completions.
package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Dialect is OpenAI's chat completions
// (https://platform.openai.com/docs/api-reference/chat/create). The canonical
// call has its semantics, so the agent's own bytes are passed on.
type Dialect struct{}

// Name implements dialect.Dialect.
func (Dialect) Name() string { return "chat" }

// Routes implements dialect.Dialect.
func (Dialect) Routes() []string {
	return []string{"POST /v1/chat/completions", "POST /chat/completions"}
}

// ModelsRoutes implements dialect.Dialect.
func (Dialect) ModelsRoutes() []string { return []string{canonical.ModelsRoute} }

// Models implements dialect.Dialect.
func (Dialect) Models(name string) []byte { return canonical.Models(name) }

// Model implements dialect.Dialect.
func (Dialect) Model(name string) []byte { return canonical.Model(name) }

// Decoder implements dialect.Dialect.
func (Dialect) Decoder() dialect.Decoder {
	return dialect.Decoder{
		Kind: "chat completion", Conversation: "messages", Member: readMember, // messages and tools are canonical
		Request: func(_ *http.Request, c dialect.Converted) dialect.Request {
			o, _ := c.Options.(options) // nil without stream_options
			return dialect.Request{Call: c.Call, Encoding: encoding{o}}
		},
	}
}

// Sent implements dialect.Dialect: chat is the default.
func (Dialect) Sent(*http.Request) bool { return true }

// encoding implements dialect.Encoding.
type encoding struct{ options }

func (encoding) Encode(m dialect.Meta, r *schema.Reply) ([]byte, error) {
	message, err := clientMessage(r.Message, whole, false)
	if err != nil {
		return nil, err
	}
	b := appendHead(make([]byte, 0, len(message)+512), m, "chat.completion")
	b = append(b, `"choices":[{"index":0,"message":`...)
	b = append(b, message...)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = rawjson.AppendString(b, r.FinishReason)
	b = append(b, `}],"usage":`...)
	b = appendUsage(b, r.Usage)
	return append(b, '}'), nil
}

// appendHead appends the first fields of every object of an answer.
func appendHead(b []byte, m dialect.Meta, object string) []byte {
	b = append(b, `{"id":`...)
	b = rawjson.AppendString(b, "chatcmpl-"+m.ID)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, m.Created, 10)
	b = append(b, `,"model":`...)
	b = rawjson.AppendString(b, m.Model)
	return append(b, ',')
}

func appendUsage(b []byte, u schema.Usage) []byte {
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), u.PromptTokens, 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), u.CompletionTokens, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), u.PromptTokens+u.CompletionTokens, 10)
	return append(b, '}')
}

// Fail implements dialect.Dialect.
func (Dialect) Fail(f dialect.Refusal) []byte { return canonical.Error(f.Code, f.Message) }

func (e encoding) Stream(m dialect.Meta) dialect.Stream { return &stream{meta: m, options: e.options} }

type stream struct {
	options
	meta  dialect.Meta
	begun bool // a delta was sent
}

func (c *stream) chunk(b []byte, delta []byte, finish string) []byte {
	b = append(b, "data: "...)
	b = appendHead(b, c.meta, "chat.completion.chunk")
	b = append(b, `"choices":[{"index":0,"delta":`...)
	b = append(b, delta...)
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = rawjson.AppendString(b, finish)
	}
	return append(b, "}]}\n\n"...)
}

func (*stream) ContentType() string { return dialect.EventStream }

// KeepAlive returns an empty delta: clients do not count comments.
func (c *stream) KeepAlive() []byte { return c.chunk(nil, []byte("{}"), "") }

func (c *stream) Delta(d *schema.Delta) ([]byte, error) {
	v, err := rawjson.OneLine(d.Delta)
	if err != nil {
		return nil, err
	}
	c.begun = true
	return c.chunk(nil, v, ""), nil
}

func (c *stream) Final(r *schema.Reply) ([]byte, error) {
	said := whole
	if c.begun {
		said = onlyCalls
	}
	delta, err := clientMessage(r.Message, said, true)
	if err != nil {
		return nil, err
	}
	var b []byte
	if len(delta) > len("{}") {
		b = c.chunk(b, delta, "")
	}
	b = c.chunk(b, []byte("{}"), r.FinishReason)
	if c.usage {
		b = append(b, "data: "...)
		b = appendHead(b, c.meta, "chat.completion.chunk")
		b = append(b, `"choices":[],"usage":`...)
		b = append(appendUsage(b, r.Usage), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...), nil
}

func (c *stream) Fail(f dialect.Refusal) []byte {
	b := append([]byte("data: "), Dialect{}.Fail(f)...)
	return append(b, "\n\n"...)
}

// said selects members of a message.
type said int

const (
	whole said = iota
	onlyCalls
)

// clientMessage returns members of a message in the form for clients. A content in
// parts becomes one text. In a delta each tool call has an index.
func clientMessage(message json.RawMessage, members said, delta bool) (b []byte, err error) {
	v := jsontext.Value(message)
	if bytes.IndexByte(v, '\n') >= 0 || bytes.IndexByte(v, '\r') >= 0 {
		if v, err = rawjson.OneLine(message); err != nil {
			return nil, err
		}
	}
	b = append(make([]byte, 0, len(v)+64), '{')
	err = rawjson.EachMember(v, func(name string, value jsontext.Value) (err error) {
		if members == onlyCalls && name != "tool_calls" {
			return nil
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(rawjson.AppendString(b, name), ':')
		switch {
		case name == "content" && value.Kind() == '[':
			var text canonical.Text
			text, err = canonical.ReadText(value)
			b = append(b, text...)
		case name == "tool_calls" && value.Kind() == '[':
			b, err = appendCalls(b, value, delta)
		default:
			b = append(b, value...)
		}
		return err
	})
	return append(b, '}'), err
}

// appendCalls appends a list of tool calls.
func appendCalls(b []byte, calls jsontext.Value, delta bool) ([]byte, error) {
	b = append(b, '[')
	n := 0
	err := rawjson.EachElement(calls, func(call jsontext.Value) error {
		if call.Kind() != '{' {
			return errors.New("a tool call that is not an object")
		}
		if n > 0 {
			b = append(b, ',')
		}
		if n++; !delta {
			b = append(b, call...)
			return nil
		}
		b = fmt.Appendf(b, `{"index":%d`, n-1)
		err := rawjson.EachMember(call, func(name string, value jsontext.Value) error {
			if name != "index" {
				b = append(rawjson.AppendString(append(b, ','), name), ':')
				b = append(b, value...)
			}
			return nil
		})
		b = append(b, '}')
		return err
	})
	return append(b, ']'), err
}
