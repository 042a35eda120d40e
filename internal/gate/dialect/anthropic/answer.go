// Package anthropic is the dialect of Anthropic's Messages API, "messages".
package anthropic

import (
	"fmt"
	"net/http"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Dialect is Anthropic's Messages API
// (https://docs.anthropic.com/en/api/messages).
type Dialect struct{}

// ownSignature marks thinking of the trainer's policy: clients need a signature
// to send back.
const ownSignature = "turngate"

// Name implements dialect.Dialect.
func (Dialect) Name() string { return "messages" }

// Routes implements dialect.Dialect.
func (Dialect) Routes() []string {
	return []string{"POST /v1/messages", "POST /v1/messages/count_tokens"}
}

// Decoder implements dialect.Dialect.
func (Dialect) Decoder() dialect.Decoder {
	return dialect.Decoder{Kind: "messages", Conversation: "messages", Messages: readItem, Member: readMember, Tools: readTools, Request: request}
}

// ModelsRoutes implements dialect.Dialect.
func (Dialect) ModelsRoutes() []string { return []string{"GET /v1/models"} }

// Sent implements dialect.Dialect: Anthropic's clients send the version of the API.
func (Dialect) Sent(r *http.Request) bool { return r.Header.Get("Anthropic-Version") != "" }

// Models implements dialect.Dialect.
func (Dialect) Models(name string) []byte {
	id := rawjson.Quote(name)
	return fmt.Appendf(nil, `{"data":[%s],"has_more":false,"first_id":%s,"last_id":%s}`, Dialect{}.Model(name), id, id)
}

// Model implements dialect.Dialect.
func (Dialect) Model(name string) []byte {
	id := rawjson.Quote(name)
	return fmt.Appendf(nil, `{"type":"model","id":%s,"display_name":%s,"created_at":"1970-01-01T00:00:00Z"}`, id, id)
}

// Fail implements dialect.Dialect.
func (Dialect) Fail(f dialect.Refusal) []byte {
	kind := map[int]string{
		http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error",
		http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error",
		http.StatusServiceUnavailable: "overloaded_error", 529: "overloaded_error",
	}[f.Status]
	switch {
	case f.Code == schema.CodeContext: // clients look for these words
		f.Message = "prompt is too long: " + f.Message
	case kind == "" && f.Status < 500:
		kind = "invalid_request_error"
	case kind == "":
		kind = "api_error"
	}
	inner := rawjson.NewObject().Str("type", kind).Str("message", f.Message)
	return rawjson.NewObject().Str("type", "error").Raw("error", inner.Done()).Done()
}

type encoding struct{}

func (encoding) Encode(m dialect.Meta, r *schema.Reply) ([]byte, error) {
	message, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	var blocks [][]byte
	if !message.Reasoning.Empty() {
		blocks = append(blocks, rawjson.NewObject().Str("type", "thinking").Raw("thinking", message.Reasoning).Str("signature", ownSignature).Done())
	}
	if !message.Content.Empty() {
		blocks = append(blocks, rawjson.NewObject().Str("type", "text").Raw("text", message.Content).Done())
	}
	for i := range message.ToolCalls {
		c := &message.ToolCalls[i]
		blocks = append(blocks, toolUse(c.ID, c.Name(), canonical.ObjectOr(c.Input())))
	}
	o := messageHead(m).Raw("content", rawjson.List(blocks)).Str("stop_reason", stopReason(r.FinishReason)).Raw("stop_sequence", []byte("null"))
	return o.Raw("usage", usage(r.Usage)).Done(), nil
}

func messageHead(m dialect.Meta) *rawjson.Object {
	return rawjson.NewObject().Str("id", "msg_"+m.ID).Str("type", "message").Str("role", "assistant").Str("model", m.Model)
}

func toolUse(id, name string, input []byte) []byte {
	return rawjson.NewObject().Str("type", "tool_use").Str("id", id).Str("name", name).Raw("input", input).Done()
}

func usage(u schema.Usage) []byte {
	return fmt.Appendf(nil, `{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":%d}`, u.PromptTokens, u.CompletionTokens)
}

func stopReason(reason string) string {
	switch reason {
	case "length":
		return "max_tokens"
	case "tool_calls":
		return "tool_use"
	case "content_filter":
		return "refusal"
	default:
		return "end_turn"
	}
}

func (encoding) Stream(m dialect.Meta) dialect.Stream { return &stream{meta: m} }

// stream writes one block after the other, as the API does.
type stream struct {
	meta  dialect.Meta
	begun bool
	kind  string // of the open block; empty: none
	block int    // its index
}

func (*stream) ContentType() string { return dialect.EventStream }

func (*stream) KeepAlive() []byte { return dialect.AppendEvent(nil, "ping", []byte(`{"type":"ping"}`)) }

func (s *stream) Fail(f dialect.Refusal) []byte {
	return dialect.AppendEvent(nil, "error", Dialect{}.Fail(f))
}

func (s *stream) start(b []byte) []byte {
	if s.begun {
		return b
	}
	s.begun = true
	m := messageHead(s.meta).Raw("content", []byte("[]")).Raw("stop_reason", []byte("null")).Raw("stop_sequence", []byte("null"))
	m.Raw("usage", usage(schema.Usage{}))
	return dialect.AppendEvent(b, "message_start", rawjson.NewObject().Str("type", "message_start").Raw("message", m.Done()).Done())
}

// open opens a block of this kind, unless one is open.
func (s *stream) open(b []byte, kind string, head []byte) []byte {
	if s.kind == kind {
		return b
	}
	b = s.close(b)
	s.kind = kind
	return dialect.AppendEvent(b, "content_block_start", fmt.Appendf(nil, `{"type":"content_block_start","index":%d,"content_block":%s}`, s.block, head))
}

func (s *stream) delta(b []byte, kind, member string, value []byte) []byte {
	d := rawjson.NewObject().Str("type", kind).Raw(member, value)
	return dialect.AppendEvent(b, "content_block_delta", fmt.Appendf(nil, `{"type":"content_block_delta","index":%d,"delta":%s}`, s.block, d.Done()))
}

func (s *stream) close(b []byte) []byte {
	if s.kind == "" {
		return b
	}
	if s.kind == "thinking" {
		b = s.delta(b, "signature_delta", "signature", rawjson.Quote(ownSignature))
	}
	b = dialect.AppendEvent(b, "content_block_stop", fmt.Appendf(nil, `{"type":"content_block_stop","index":%d}`, s.block))
	s.kind = ""
	s.block++
	return b
}

func (s *stream) Delta(d *schema.Delta) ([]byte, error) {
	message, err := canonical.ReadAnswer(d.Delta)
	if err != nil {
		return nil, err
	}
	return s.write(&message), nil
}

// write writes the texts of a message or a piece.
func (s *stream) write(message *canonical.Answer) []byte {
	b := s.start(nil)
	if !message.Reasoning.Empty() {
		b = s.open(b, "thinking", []byte(`{"type":"thinking","thinking":"","signature":""}`))
		b = s.delta(b, "thinking_delta", "thinking", message.Reasoning)
	}
	if !message.Content.Empty() {
		b = s.open(b, "text", []byte(`{"type":"text","text":""}`))
		b = s.delta(b, "text_delta", "text", message.Content)
	}
	return b
}

func (s *stream) Final(r *schema.Reply) ([]byte, error) {
	message, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	var b []byte
	if !s.begun {
		b = s.write(&message)
	}
	b = s.close(b)
	for i := range message.ToolCalls {
		c := &message.ToolCalls[i]
		b = s.open(b, "tool_use", toolUse(c.ID, c.Name(), []byte("{}")))
		if in := c.Input(); in != "" {
			b = s.delta(b, "input_json_delta", "partial_json", rawjson.Quote(string(canonical.ObjectOr(in))))
		}
		b = s.close(b)
	}
	delta := rawjson.NewObject().Str("stop_reason", stopReason(r.FinishReason)).Raw("stop_sequence", []byte("null"))
	b = dialect.AppendEvent(b, "message_delta", rawjson.NewObject().Str("type", "message_delta").Raw("delta", delta.Done()).Raw("usage", usage(r.Usage)).Done())
	return dialect.AppendEvent(b, "message_stop", []byte(`{"type":"message_stop"}`)), nil
}
