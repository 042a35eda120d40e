package gate

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// Messages is Anthropic's Messages API
// (https://docs.anthropic.com/en/api/messages).
type Messages struct{}

// ownSignature marks thinking that a policy of ours made: clients want some
// signature to send back.
const ownSignature = "turngate"

// Name implements Dialect.
func (Messages) Name() string { return "messages" }

// Routes implements Dialect.
func (Messages) Routes() []string {
	return []string{"POST /v1/messages", "POST /v1/messages/count_tokens"}
}

// Decoder implements Dialect.
func (Messages) Decoder(m *Memory) Decoder {
	return &messagesDecoder{splitter: splitter{array: "messages", memory: m}}
}

// ModelsRoutes implements Dialect.
func (Messages) ModelsRoutes() []string { return []string{"GET /v1/models"} }

// Sent implements Dialect: Anthropic's clients name the version they speak.
func (Messages) Sent(r *http.Request) bool { return r.Header.Get("Anthropic-Version") != "" }

// Models implements Dialect.
func (Messages) Models(name string) []byte {
	id := quoted(name)
	return fmt.Appendf(nil, `{"data":[{"type":"model","id":%s,"display_name":%s,"created_at":"1970-01-01T00:00:00Z"}],"has_more":false,"first_id":%s,"last_id":%s}`, id, id, id, id)
}

// Fail implements Dialect.
func (Messages) Fail(f Refusal) []byte {
	kind := map[int]string{
		http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error",
		http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error",
		http.StatusServiceUnavailable: "overloaded_error", 529: "overloaded_error",
	}[f.Status]
	switch {
	case f.Code == schema.CodeContext: // the words by which clients know it
		f.Message = "prompt is too long: " + f.Message
	case kind == "" && f.Status < 500:
		kind = "invalid_request_error"
	case kind == "":
		kind = "api_error"
	}
	inner := newObject().str("type", kind).str("message", f.Message)
	return newObject().str("type", "error").raw("error", inner.done()).done()
}

type messagesEncoding struct{}

func (messagesEncoding) Encode(m Meta, r *schema.Reply) ([]byte, error) {
	said, err := readSaid(r.Message)
	if err != nil {
		return nil, err
	}
	var blocks [][]byte
	if !said.reasoning.empty() {
		blocks = append(blocks, newObject().str("type", "thinking").raw("thinking", said.reasoning).str("signature", ownSignature).done())
	}
	if !said.content.empty() {
		blocks = append(blocks, newObject().str("type", "text").raw("text", said.content).done())
	}
	for i := range said.toolCalls {
		c := &said.toolCalls[i]
		blocks = append(blocks, toolUse(c.id, c.name(), objectOr(c.input())))
	}
	o := messageHead(m).raw("content", list(blocks)).str("stop_reason", stopReason(r.FinishReason, len(said.toolCalls))).raw("stop_sequence", []byte("null"))
	return o.raw("usage", anthropicUsage(r.Usage)).done(), nil
}

func messageHead(m Meta) *object {
	return newObject().str("id", "msg_"+m.ID).str("type", "message").str("role", "assistant").str("model", m.Model)
}

func toolUse(id, name string, input []byte) []byte {
	return newObject().str("type", "tool_use").str("id", id).str("name", name).raw("input", input).done()
}

func anthropicUsage(u schema.Usage) []byte {
	return fmt.Appendf(nil, `{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":%d}`, u.PromptTokens, u.CompletionTokens)
}

func stopReason(reason string, tools int) string {
	switch finish(reason, tools) {
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

func (messagesEncoding) Stream(m Meta) Stream { return &messagesStream{meta: m, tools: map[int]bool{}} }

// messagesStream writes blocks one after the other, as the API does.
type messagesStream struct {
	meta  Meta
	begun bool
	kind  string // of the block that is open; empty: none
	tool  int    // its index among the tool calls, if it is one
	tools map[int]bool
	block int // its index
}

func event(b []byte, kind string, data []byte) []byte {
	b = append(b, "event: "...)
	b = append(b, kind...)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

func (*messagesStream) ContentType() string { return eventStream }

func (*messagesStream) KeepAlive() []byte { return event(nil, "ping", []byte(`{"type":"ping"}`)) }

func (s *messagesStream) Fail(f Refusal) []byte { return event(nil, "error", Messages{}.Fail(f)) }

func (s *messagesStream) start(b []byte) []byte {
	if s.begun {
		return b
	}
	s.begun = true
	m := messageHead(s.meta).raw("content", []byte("[]")).raw("stop_reason", []byte("null")).raw("stop_sequence", []byte("null"))
	m.raw("usage", anthropicUsage(schema.Usage{}))
	return event(b, "message_start", newObject().str("type", "message_start").raw("message", m.done()).done())
}

// open makes sure that the block of this kind is the open one.
func (s *messagesStream) open(b []byte, kind string, tool int, head []byte) []byte {
	if s.kind == kind && s.tool == tool {
		return b
	}
	b = s.close(b)
	s.kind, s.tool = kind, tool
	return event(b, "content_block_start", fmt.Appendf(nil, `{"type":"content_block_start","index":%d,"content_block":%s}`, s.block, head))
}

func (s *messagesStream) delta(b []byte, kind, member string, value []byte) []byte {
	d := newObject().str("type", kind).raw(member, value)
	return event(b, "content_block_delta", fmt.Appendf(nil, `{"type":"content_block_delta","index":%d,"delta":%s}`, s.block, d.done()))
}

func (s *messagesStream) close(b []byte) []byte {
	if s.kind == "" {
		return b
	}
	if s.kind == "thinking" {
		b = s.delta(b, "signature_delta", "signature", quoted(ownSignature))
	}
	b = event(b, "content_block_stop", fmt.Appendf(nil, `{"type":"content_block_stop","index":%d}`, s.block))
	s.kind = ""
	s.block++
	return b
}

func (s *messagesStream) Delta(d *schema.Delta) ([]byte, error) { return s.write(d.Delta) }

func (s *messagesStream) write(raw json.RawMessage) ([]byte, error) {
	said, err := readSaid(raw)
	if err != nil {
		return nil, err
	}
	b := s.start(nil)
	if !said.reasoning.empty() {
		b = s.open(b, "thinking", 0, []byte(`{"type":"thinking","thinking":"","signature":""}`))
		b = s.delta(b, "thinking_delta", "thinking", said.reasoning)
	}
	if !said.content.empty() {
		b = s.open(b, "text", 0, []byte(`{"type":"text","text":""}`))
		b = s.delta(b, "text_delta", "text", said.content)
	}
	for i := range said.toolCalls {
		c := &said.toolCalls[i]
		if !s.tools[c.index] {
			s.tools[c.index] = true
			b = s.open(b, "tool_use", c.index, toolUse(c.id, c.name(), []byte("{}")))
		} else if s.kind != "tool_use" || s.tool != c.index {
			return nil, fmt.Errorf("tool call %d goes on after another block began", c.index)
		}
		if in := c.input(); in != "" {
			b = s.delta(b, "input_json_delta", "partial_json", quoted(in))
		}
	}
	return b, nil
}

func (s *messagesStream) Final(r *schema.Reply) ([]byte, error) {
	var b []byte
	if !s.begun {
		var err error
		if b, err = s.write(r.Message); err != nil {
			return nil, err
		}
	}
	b = s.close(b)
	delta := newObject().str("stop_reason", stopReason(r.FinishReason, len(s.tools))).raw("stop_sequence", []byte("null"))
	b = event(b, "message_delta", newObject().str("type", "message_delta").raw("delta", delta.done()).raw("usage", anthropicUsage(r.Usage)).done())
	return event(b, "message_stop", []byte(`{"type":"message_stop"}`)), nil
}
