// Package gemini is the dialect of Google's generateContent API.
package gemini

import (
	"fmt"
	"net/http"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Dialect is Google's generateContent API
// (https://ai.google.dev/api/generate-content).
type Dialect struct{}

// Name implements dialect.Dialect.
func (Dialect) Name() string { return "gemini" }

// Routes implements dialect.Dialect.
func (Dialect) Routes() []string {
	return []string{"POST /v1beta/models/{call}", "POST /v1/models/{call}"}
}

// Decoder implements dialect.Dialect.
func (Dialect) Decoder() dialect.Decoder {
	d := &decoder{}
	return dialect.Decoder{Kind: "generateContent", Conversation: "contents", Begin: d.begin, Messages: d.messages, Member: readMember, Tools: readTools, Request: d.request}
}

// ModelsRoutes implements dialect.Dialect.
func (Dialect) ModelsRoutes() []string { return []string{"GET /v1beta/models", "GET /v1/models"} }

// Sent implements dialect.Dialect: Google's clients send this header.
func (Dialect) Sent(r *http.Request) bool { return r.Header.Get("X-Goog-Api-Key") != "" }

// Models implements dialect.Dialect.
func (Dialect) Models(name string) []byte {
	return fmt.Appendf(nil, `{"models":[%s]}`, Dialect{}.Model(name))
}

// Model implements dialect.Dialect.
func (Dialect) Model(name string) []byte {
	return fmt.Appendf(nil, `{"name":%s,"displayName":%s,"supportedGenerationMethods":["generateContent","countTokens"]}`, rawjson.Quote("models/"+name), rawjson.Quote(name))
}

// Fail implements dialect.Dialect.
func (Dialect) Fail(f dialect.Refusal) []byte {
	status := map[int]string{
		http.StatusBadRequest: "INVALID_ARGUMENT", http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusForbidden: "PERMISSION_DENIED", http.StatusNotFound: "NOT_FOUND",
		http.StatusConflict: "ABORTED", http.StatusTooManyRequests: "RESOURCE_EXHAUSTED", http.StatusServiceUnavailable: "UNAVAILABLE", http.StatusGatewayTimeout: "DEADLINE_EXCEEDED",
	}[f.Status]
	switch {
	case status == "" && f.Status < 500:
		status = "INVALID_ARGUMENT"
	case status == "":
		status = "INTERNAL"
	}
	if f.Code == schema.CodeContext { // clients look for these words
		f.Message = "The input token count exceeds the maximum number of tokens allowed. " + f.Message
	}
	inner := rawjson.NewObject().Raw("code", fmt.Append(nil, f.Status)).Str("message", f.Message).Str("status", status)
	return rawjson.NewObject().Raw("error", inner.Done()).Done()
}

// encoding writes the answer to one request.
type encoding struct {
	events bool // stream as events, not as a JSON array
}

func (encoding) Encode(m dialect.Meta, r *schema.Reply) ([]byte, error) {
	message, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	return candidate(m, answerParts(&message, message.ToolCalls), r), nil
}

func textPart(s canonical.Text, thought bool) []byte {
	o := rawjson.NewObject().Raw("text", s)
	if thought {
		o.Raw("thought", []byte("true"))
	}
	return o.Done()
}

func answerParts(m *canonical.Answer, calls []canonical.ToolCall) [][]byte {
	parts := [][]byte{}
	if !m.Reasoning.Empty() {
		parts = append(parts, textPart(m.Reasoning, true))
	}
	if !m.Content.Empty() {
		parts = append(parts, textPart(m.Content, false))
	}
	for i := range calls {
		c := &calls[i]
		f := rawjson.NewObject().Str("id", c.ID).Str("name", c.Name()).Raw("args", canonical.ObjectOr(c.Input()))
		parts = append(parts, rawjson.NewObject().Raw("functionCall", f.Done()).Done())
	}
	return parts
}

// candidate returns one object of an answer. Only the last one has a reply.
func candidate(m dialect.Meta, parts [][]byte, r *schema.Reply) []byte {
	c := rawjson.NewObject().Raw("content", rawjson.NewObject().Raw("parts", rawjson.List(parts)).Str("role", "model").Done())
	if r != nil {
		c.Str("finishReason", finishReason(r.FinishReason))
	}
	c.Raw("index", []byte("0"))
	o := rawjson.NewObject().Raw("candidates", rawjson.List([][]byte{c.Done()}))
	if r != nil {
		u := r.Usage
		o.Raw("usageMetadata", fmt.Appendf(nil, `{"promptTokenCount":%d,"candidatesTokenCount":%d,"totalTokenCount":%d}`, u.PromptTokens, u.CompletionTokens, u.PromptTokens+u.CompletionTokens))
	}
	return o.Str("modelVersion", m.Model).Str("responseId", m.ID).Done()
}

func finishReason(reason string) string {
	switch reason {
	case "length":
		return "MAX_TOKENS"
	case "content_filter":
		return "SAFETY"
	default:
		return "STOP"
	}
}

func (e encoding) Stream(m dialect.Meta) dialect.Stream {
	return &stream{meta: m, events: e.events}
}

// stream writes objects.
type stream struct {
	meta   dialect.Meta
	events bool
	begun  bool // a delta was read
	listed bool // the array was opened
}

func (s *stream) ContentType() string {
	if s.events {
		return dialect.EventStream
	}
	return "application/json"
}

// wrap turns an object into an event, or an element of the array.
func (s *stream) wrap(o []byte) []byte {
	if s.events {
		return append(append([]byte("data: "), o...), "\r\n\r\n"...)
	}
	lead := ",\r\n"
	if !s.listed {
		lead, s.listed = "[", true
	}
	return append([]byte(lead), o...)
}

func (s *stream) KeepAlive() []byte {
	return s.wrap([]byte(`{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"index":0}]}`))
}

func (s *stream) Delta(d *schema.Delta) ([]byte, error) {
	message, err := canonical.ReadAnswer(d.Delta)
	if err != nil {
		return nil, err
	}
	s.begun = true
	parts := answerParts(&message, nil)
	if len(parts) == 0 {
		return nil, nil
	}
	return s.wrap(candidate(s.meta, parts, nil)), nil
}

func (s *stream) Final(r *schema.Reply) ([]byte, error) {
	message, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	if s.begun {
		message.Content, message.Reasoning = nil, nil
	}
	parts := answerParts(&message, message.ToolCalls)
	if len(parts) == 0 {
		parts = append(parts, textPart(canonical.Text(`""`), false))
	}
	return s.end(s.wrap(candidate(s.meta, parts, r))), nil
}

func (s *stream) end(b []byte) []byte {
	if s.events {
		return b
	}
	return append(b, ']')
}

func (s *stream) Fail(f dialect.Refusal) []byte { return s.end(s.wrap(Dialect{}.Fail(f))) }
