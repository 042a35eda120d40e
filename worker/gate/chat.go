package gate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// Chat is OpenAI's chat completions
// (https://platform.openai.com/docs/api-reference/chat/create). The canonical
// call has its semantics, so the agent's own bytes are passed on.
type Chat struct{}

// Name implements Dialect.
func (Chat) Name() string { return "chat" }

// Routes implements Dialect.
func (Chat) Routes() []string {
	return []string{"POST /v1/chat/completions", "POST /chat/completions"}
}

// ModelsRoutes implements Dialect.
func (Chat) ModelsRoutes() []string { return []string{"GET /v1/models"} }

// Models implements Dialect.
func (Chat) Models(name string) []byte {
	id, _ := json.Marshal(name)
	return fmt.Appendf(nil, `{"object":"list","data":[{"id":%s,"object":"model","created":0,"owned_by":"turngate"}]}`, id)
}

// Decoder implements Dialect.
func (Chat) Decoder(m *Memory) Decoder {
	return &chatDecoder{splitter: splitter{array: "messages", hashes: true, memory: m}}
}

// Sent implements Dialect: it is for whoever is nobody else.
func (Chat) Sent(*http.Request) bool { return true }

// chatEncoding implements Encoding.
type chatEncoding struct{}

func (chatEncoding) Encode(m Meta, r *schema.Reply) ([]byte, error) {
	message, err := oneLine(r.Message)
	if err != nil {
		return nil, err
	}
	b := m.open(make([]byte, 0, len(message)+512), "chat.completion")
	b = append(b, `"choices":[{"index":0,"message":`...)
	b = append(b, message...)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = appendString(b, r.FinishReason)
	b = append(b, `}],"usage":`...)
	b = appendUsage(b, r.Usage)
	return append(b, '}'), nil
}

// open appends the fields that every object of an answer begins with.
func (m Meta) open(b []byte, object string) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, "chatcmpl-"+m.ID)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, m.Created, 10)
	b = append(b, `,"model":`...)
	b = appendString(b, m.Model)
	return append(b, ',')
}

func appendString(b []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	out, err := jsontext.AppendQuote(b, s)
	if err != nil { // not UTF-8: bytes were replaced
		return out
	}
	return out
}

// isPlain reports whether all of a string stands for itself in JSON.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func appendUsage(b []byte, u schema.Usage) []byte {
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), u.PromptTokens, 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), u.CompletionTokens, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), u.PromptTokens+u.CompletionTokens, 10)
	return append(b, '}')
}

// oneLine checks that raw is a JSON object and brings it to a form without
// line breaks, which would end an event.
func oneLine(raw json.RawMessage) (jsontext.Value, error) {
	v := jsontext.Value(raw)
	if v.Kind() != '{' || !schema.IsJSON(v) {
		return nil, errors.New("not a JSON object")
	}
	if bytes.IndexByte(v, '\n') >= 0 || bytes.IndexByte(v, '\r') >= 0 {
		v = bytes.Clone(v)
		if err := v.Compact(); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Fail implements Dialect.
func (Chat) Fail(f Refusal) []byte {
	b := append([]byte(nil), `{"error":{"message":`...)
	b = appendString(b, f.Message)
	b = append(b, `,"type":`...)
	b = appendString(b, f.Code)
	b = append(b, `,"param":null,"code":`...)
	b = appendString(b, f.Code)
	return append(b, `}}`...)
}

func (chatEncoding) Stream(m Meta) Stream { return &chatStream{meta: m} }

type chatStream struct {
	meta  Meta
	begun bool // a delta was sent
}

func (c *chatStream) chunk(b []byte, delta []byte, finish string) []byte {
	b = append(b, "data: "...)
	b = c.meta.open(b, "chat.completion.chunk")
	b = append(b, `"choices":[{"index":0,"delta":`...)
	b = append(b, delta...)
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, finish)
	}
	return append(b, "}]}\n\n"...)
}

func (*chatStream) ContentType() string { return eventStream }

// KeepAlive is an empty delta: clients do not count comments.
func (c *chatStream) KeepAlive() []byte { return c.chunk(nil, []byte("{}"), "") }

func (c *chatStream) Delta(d *schema.Delta) ([]byte, error) {
	v, err := oneLine(d.Delta)
	if err != nil {
		return nil, err
	}
	c.begun = true
	return c.chunk(nil, v, ""), nil
}

func (c *chatStream) Final(r *schema.Reply) ([]byte, error) {
	var b []byte
	if !c.begun {
		delta, err := deltaOf(r.Message)
		if err != nil {
			return nil, err
		}
		b = c.chunk(b, delta, "")
	}
	b = c.chunk(b, []byte("{}"), r.FinishReason)
	b = append(b, "data: "...)
	b = c.meta.open(b, "chat.completion.chunk")
	b = append(b, `"choices":[],"usage":`...)
	b = appendUsage(b, r.Usage)
	return append(b, "}\n\ndata: [DONE]\n\n"...), nil
}

func (c *chatStream) Fail(f Refusal) []byte {
	b := append([]byte("data: "), Chat{}.Fail(f)...)
	return append(b, "\n\n"...)
}

// deltaOf turns a whole message into one delta: the same members, and an
// index for each tool call.
func deltaOf(message json.RawMessage) ([]byte, error) {
	v, err := oneLine(message)
	if err != nil {
		return nil, err
	}
	b := []byte{'{'}
	err = schema.EachMember(v, func(name string, value jsontext.Value) error {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(appendString(b, name), ':')
		if name != "tool_calls" || value.Kind() != '[' {
			b = append(b, value...)
			return nil
		}
		b = append(b, '[')
		i := 0
		err := schema.EachElement(value, func(call jsontext.Value) error {
			if call.Kind() != '{' {
				return errors.New("a tool call that is not an object")
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, `{"index":%d`, i)
			i++
			err := schema.EachMember(call, func(name string, value jsontext.Value) error {
				if name != "index" {
					b = append(appendString(append(b, ','), name), ':')
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
	return append(b, '}'), err
}
