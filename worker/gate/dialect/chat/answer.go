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

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate/canonical"
	"github.com/turngate/turngate/worker/gate/dialect"
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
			return dialect.Request{Call: c.Call, Encoding: encoding{}}
		},
	}
}

// Sent implements dialect.Dialect: chat is the default.
func (Dialect) Sent(*http.Request) bool { return true }

// encoding implements dialect.Encoding.
type encoding struct{}

func (encoding) Encode(m dialect.Meta, r *schema.Reply) ([]byte, error) {
	message, tools, err := clientMessage(r.Message, nil)
	if err != nil {
		return nil, err
	}
	b := appendHead(make([]byte, 0, len(message)+512), m, "chat.completion")
	b = append(b, `"choices":[{"index":0,"message":`...)
	b = append(b, message...)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = rawjson.AppendString(b, canonical.FinishReason(r.FinishReason, tools))
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

func (encoding) Stream(m dialect.Meta) dialect.Stream { return &stream{meta: m, calls: map[int]int{}} }

// maxToolCalls bounds the tool calls of a streamed answer.
const maxToolCalls = 4096

type stream struct {
	meta  dialect.Meta
	begun bool        // a delta was sent
	calls map[int]int // tool calls so far: the place of each by the trainer's index
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
	if bytes.Contains(v, []byte(`"tool_calls"`)) { // clients need indices in a row
		message, err := canonical.ReadAnswer(v)
		if err != nil {
			return nil, err
		}
		for i := range message.ToolCalls {
			if _, known := c.calls[message.ToolCalls[i].Index]; !known {
				c.calls[message.ToolCalls[i].Index] = len(c.calls)
			}
		}
		if len(c.calls) > maxToolCalls {
			return nil, fmt.Errorf("an answer with more than %d tool calls", maxToolCalls)
		}
		place := func(i int) int { return c.calls[message.ToolCalls[i].Index] }
		if v, _, err = clientMessage(json.RawMessage(v), place); err != nil {
			return nil, err
		}
	}
	c.begun = true
	return c.chunk(nil, v, ""), nil
}

func (c *stream) Final(r *schema.Reply) ([]byte, error) {
	var b []byte
	delta, tools, err := clientMessage(r.Message, func(i int) int { return i })
	if err != nil {
		return nil, err
	}
	if !c.begun {
		b = c.chunk(b, delta, "")
	}
	b = c.chunk(b, []byte("{}"), canonical.FinishReason(r.FinishReason, tools))
	b = append(b, "data: "...)
	b = appendHead(b, c.meta, "chat.completion.chunk")
	b = append(b, `"choices":[],"usage":`...)
	b = appendUsage(b, r.Usage)
	return append(b, "}\n\ndata: [DONE]\n\n"...), nil
}

func (c *stream) Fail(f dialect.Refusal) []byte {
	b := append([]byte("data: "), Dialect{}.Fail(f)...)
	return append(b, "\n\n"...)
}

// clientMessage returns a message in the form for clients, and its number of tool
// calls. A content in parts becomes one text. In a delta index returns the index
// of each tool call by its place; nil: message is no delta.
func clientMessage(message json.RawMessage, index func(place int) int) (b []byte, tools int, err error) {
	v := jsontext.Value(message)
	if bytes.IndexByte(v, '\n') >= 0 || bytes.IndexByte(v, '\r') >= 0 {
		if v, err = rawjson.OneLine(message); err != nil {
			return nil, 0, err
		}
	}
	b = append(make([]byte, 0, len(v)+64), '{')
	err = rawjson.EachMember(v, func(name string, value jsontext.Value) error {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(rawjson.AppendString(b, name), ':')
		if value.Kind() != '[' || name != "tool_calls" && name != "content" {
			b = append(b, value...)
			return nil
		}
		if name == "content" {
			text, err := canonical.ReadText(value)
			b = append(b, text...)
			return err
		}
		b = append(b, '[')
		err := rawjson.EachElement(value, func(call jsontext.Value) error {
			if call.Kind() != '{' {
				return errors.New("a tool call that is not an object")
			}
			if tools > 0 {
				b = append(b, ',')
			}
			tools++
			if index == nil {
				b = append(b, call...)
				return nil
			}
			b = fmt.Appendf(b, `{"index":%d`, index(tools-1))
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
		b = append(b, ']')
		return err
	})
	return append(b, '}'), tools, err
}
