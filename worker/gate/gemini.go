package gate

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/turngate/turngate/schema"
)

// Gemini is Google's generateContent API
// (https://ai.google.dev/api/generate-content).
type Gemini struct{}

// Name implements Dialect.
func (Gemini) Name() string { return "gemini" }

// Routes implements Dialect.
func (Gemini) Routes() []string {
	return []string{"POST /v1beta/models/{call}", "POST /v1/models/{call}"}
}

// Decoder implements Dialect.
func (Gemini) Decoder(m *Memory) Decoder {
	return &geminiDecoder{splitter: splitter{array: "contents", memory: m}}
}

// ModelsRoutes implements Dialect.
func (Gemini) ModelsRoutes() []string { return []string{"GET /v1beta/models", "GET /v1/models"} }

// Sent implements Dialect: Google's clients have a header of their own.
func (Gemini) Sent(r *http.Request) bool { return r.Header.Get("X-Goog-Api-Key") != "" }

// Models implements Dialect.
func (Gemini) Models(name string) []byte {
	return fmt.Appendf(nil, `{"models":[{"name":%s,"displayName":%s,"supportedGenerationMethods":["generateContent","countTokens"]}]}`, quoted("models/"+name), quoted(name))
}

// Fail implements Dialect.
func (Gemini) Fail(f Refusal) []byte {
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
	if f.Code == schema.CodeContext { // the words by which clients know it
		f.Message = "The input token count exceeds the maximum number of tokens allowed. " + f.Message
	}
	inner := newObject().raw("code", fmt.Append(nil, f.Status)).str("message", f.Message).str("status", status)
	return newObject().raw("error", inner.done()).done()
}

// geminiEncoding writes the answer to one request.
type geminiEncoding struct {
	events bool // a stream is one of events, not a JSON array
}

func (geminiEncoding) Encode(m Meta, r *schema.Reply) ([]byte, error) {
	said, err := readSaid(r.Message)
	if err != nil {
		return nil, err
	}
	return candidate(m, geminiParts(&said, said.toolCalls), r), nil
}

func textPart(s text, thought bool) []byte {
	o := newObject().raw("text", s)
	if thought {
		o.raw("thought", []byte("true"))
	}
	return o.done()
}

func geminiParts(m *said, calls []toolCall) [][]byte {
	parts := [][]byte{}
	if !m.reasoning.empty() {
		parts = append(parts, textPart(m.reasoning, true))
	}
	if !m.content.empty() {
		parts = append(parts, textPart(m.content, false))
	}
	for i := range calls {
		c := &calls[i]
		f := newObject().str("id", c.id).str("name", c.name()).raw("args", objectOr(c.input()))
		parts = append(parts, newObject().raw("functionCall", f.done()).done())
	}
	return parts
}

// candidate is one object of an answer. The last one has a reply.
func candidate(m Meta, parts [][]byte, r *schema.Reply) []byte {
	c := newObject().raw("content", newObject().raw("parts", list(parts)).str("role", "model").done())
	if r != nil {
		c.str("finishReason", geminiReason(r.FinishReason))
	}
	c.raw("index", []byte("0"))
	o := newObject().raw("candidates", list([][]byte{c.done()}))
	if r != nil {
		u := r.Usage
		o.raw("usageMetadata", fmt.Appendf(nil, `{"promptTokenCount":%d,"candidatesTokenCount":%d,"totalTokenCount":%d}`, u.PromptTokens, u.CompletionTokens, u.PromptTokens+u.CompletionTokens))
	}
	return o.str("modelVersion", m.Model).str("responseId", m.ID).done()
}

func geminiReason(reason string) string {
	switch reason {
	case "length":
		return "MAX_TOKENS"
	case "content_filter":
		return "SAFETY"
	default:
		return "STOP"
	}
}

func (e geminiEncoding) Stream(m Meta) Stream {
	return &geminiStream{meta: m, events: e.events}
}

// geminiStream writes objects. A function call is one whole part there, so the
// pieces of one are kept until the answer is whole.
type geminiStream struct {
	meta   Meta
	events bool
	begun  bool // a delta was taken
	listed bool // the array was opened
	calls  []toolCall
}

func (s *geminiStream) ContentType() string {
	if s.events {
		return eventStream
	}
	return "application/json"
}

// wrap makes an object an event, or an element of the array.
func (s *geminiStream) wrap(o []byte) []byte {
	if s.events {
		return append(append([]byte("data: "), o...), "\r\n\r\n"...)
	}
	lead := ",\r\n"
	if !s.listed {
		lead, s.listed = "[", true
	}
	return append([]byte(lead), o...)
}

func (s *geminiStream) KeepAlive() []byte {
	return s.wrap([]byte(`{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"index":0}]}`))
}

func (s *geminiStream) Delta(d *schema.Delta) ([]byte, error) {
	said, err := readSaid(d.Delta)
	if err != nil {
		return nil, err
	}
	s.begun = true
	for i := range said.toolCalls {
		piece := &said.toolCalls[i]
		at := slices.IndexFunc(s.calls, func(c toolCall) bool { return c.index == piece.index })
		if at < 0 {
			s.calls = append(s.calls, *piece)
			continue
		}
		s.calls[at].function.arguments += piece.function.arguments
		s.calls[at].tool.input += piece.tool.input
	}
	parts := geminiParts(&said, nil)
	if len(parts) == 0 {
		return nil, nil
	}
	return s.wrap(candidate(s.meta, parts, nil)), nil
}

func (s *geminiStream) Final(r *schema.Reply) ([]byte, error) {
	said := said{toolCalls: s.calls}
	if !s.begun {
		var err error
		if said, err = readSaid(r.Message); err != nil {
			return nil, err
		}
	}
	parts := geminiParts(&said, said.toolCalls)
	if len(parts) == 0 {
		parts = append(parts, textPart(text(`""`), false))
	}
	return s.end(s.wrap(candidate(s.meta, parts, r))), nil
}

func (s *geminiStream) end(b []byte) []byte {
	if s.events {
		return b
	}
	return append(b, ']')
}

func (s *geminiStream) Fail(f Refusal) []byte { return s.end(s.wrap(Gemini{}.Fail(f))) }
