// Package responses is the dialect of OpenAI's Responses API.
package responses

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Dialect is OpenAI's Responses API
// (https://platform.openai.com/docs/api-reference/responses).
type Dialect struct{}

// Name implements dialect.Dialect.
func (Dialect) Name() string { return "responses" }

// Routes implements dialect.Dialect.
func (Dialect) Routes() []string { return []string{"POST /v1/responses", "POST /responses"} }

// Decoder implements dialect.Dialect.
func (Dialect) Decoder() dialect.Decoder {
	return dialect.Decoder{Kind: "responses", Conversation: "input", Messages: readItems, Member: readMember, Tools: readTools, Request: request}
}

// ModelsRoutes implements dialect.Dialect.
func (Dialect) ModelsRoutes() []string { return []string{canonical.ModelsRoute} }

// Sent implements dialect.Dialect: its list of models is the same as chat's.
func (Dialect) Sent(*http.Request) bool { return false }

// Models implements dialect.Dialect.
func (Dialect) Models(name string) []byte { return canonical.Models(name) }

// Model implements dialect.Dialect.
func (Dialect) Model(name string) []byte { return canonical.Model(name) }

// Refused implements dialect.Refuser: these routes would read or delete an
// earlier answer.
func (Dialect) Refused() ([]string, dialect.Refusal) {
	return []string{"GET /v1/responses/{id}", "DELETE /v1/responses/{id}", "GET /responses/{id}", "DELETE /responses/{id}"},
		dialect.Refusal{Status: http.StatusNotFound, Code: "not_found", Message: "Answers are not kept to be read again: name one as previous_response_id."}
}

// Fail implements dialect.Dialect.
func (Dialect) Fail(f dialect.Refusal) []byte { return canonical.Error(f.Code, f.Message) }

// encoding writes the answer to one request.
type encoding struct {
	names   toolNames
	answers dialect.Answers
	history []json.RawMessage // the conversation without instructions
}

func (e *encoding) Encode(m dialect.Meta, r *schema.Reply) ([]byte, error) {
	message, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	s := &stream{e: e, meta: m, silent: true}
	s.addTexts(&message)
	s.addCalls(message.ToolCalls)
	e.remember(m, r)
	return s.response(r.FinishReason, &r.Usage, nil), nil
}

// remember keeps the conversation for a request that continues from this
// answer.
func (e *encoding) remember(m dialect.Meta, r *schema.Reply) {
	e.answers.Keep(responseID(m), e.history, r.Message)
}

func responseID(m dialect.Meta) string { return "resp_" + m.ID }

// Stream implements dialect.Encoding.
func (e *encoding) Stream(m dialect.Meta) dialect.Stream { return &stream{e: e, meta: m} }

// stream writes the events of one answer, and collects its items.
type stream struct {
	e      *encoding
	meta   dialect.Meta
	b      []byte // events that take has not returned yet
	seq    int
	begun  bool
	silent bool               // collect the items only, without events
	items  [][]byte           // finished items
	open   string             // type of the open item; empty: none
	call   canonical.ToolCall // the open item if its type is a tool call
	text   []byte             // text of the open item, as JSON without quotes
}

func (*stream) ContentType() string { return dialect.EventStream }

func (*stream) KeepAlive() []byte {
	return dialect.AppendEvent(nil, "keepalive", []byte(`{"type":"keepalive","sequence_number":0}`))
}

// emit writes one event; o has the members after type and sequence_number.
func (s *stream) emit(kind string, o *rawjson.Object) {
	head := rawjson.NewObject().Str("type", kind).Raw("sequence_number", strconv.AppendInt(nil, int64(s.seq), 10))
	s.seq++
	s.b = dialect.AppendEvent(s.b, kind, head.Merge(o).Done())
}

func (s *stream) drain() []byte {
	b := s.b
	s.b = nil
	return b
}

func (s *stream) start() {
	if s.begun {
		return
	}
	if s.begun = true; s.silent {
		return
	}
	for _, kind := range []string{"response.created", "response.in_progress"} {
		s.emit(kind, rawjson.NewObject().Raw("response", s.response("", nil, nil)))
	}
}

// response returns the response object so far; nil usage means in progress.
func (s *stream) response(reason string, usage *schema.Usage, failed *dialect.Refusal) []byte {
	status, incomplete, fault, used := "in_progress", "null", "null", "null"
	switch {
	case failed != nil:
		status, fault = "failed", string(rawjson.NewObject().Str("code", errorCode(failed)).Str("message", failed.Message).Done())
	case usage != nil && reason == "length":
		status, incomplete = "incomplete", `{"reason":"max_output_tokens"}`
	case usage != nil && reason == "content_filter":
		status, incomplete = "incomplete", `{"reason":"content_filter"}`
	case usage != nil:
		status = "completed"
	}
	if usage != nil {
		used = `{"input_tokens":` + strconv.FormatInt(usage.PromptTokens, 10) + `,"input_tokens_details":{"cached_tokens":0},"output_tokens":` + strconv.FormatInt(usage.CompletionTokens, 10) +
			`,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":` + strconv.FormatInt(usage.PromptTokens+usage.CompletionTokens, 10) + `}`
	}
	o := rawjson.NewObject().Str("id", responseID(s.meta)).Str("object", "response").Raw("created_at", strconv.AppendInt(nil, s.meta.Created, 10))
	o.Str("status", status).Raw("error", []byte(fault)).Raw("incomplete_details", []byte(incomplete)).Str("model", s.meta.Model)
	o.Raw("output", rawjson.List(s.items)).Raw("usage", []byte(used))
	for _, m := range [][2]string{{"instructions", "null"}, {"metadata", "{}"}, {"parallel_tool_calls", "true"}, {"temperature", "null"}, {"tool_choice", `"auto"`}, {"tools", "[]"}, {"top_p", "null"}} {
		o.Raw(m[0], []byte(m[1]))
	}
	return o.Done()
}

func errorCode(f *dialect.Refusal) string {
	if f.Status >= 500 {
		return "server_error"
	}
	return f.Code
}

// addTexts writes the texts of a message or of a piece.
func (s *stream) addTexts(m *canonical.Answer) {
	s.start()
	if !m.Reasoning.Empty() {
		s.openItem("reasoning")
		s.grow("response.reasoning_summary_text.delta", m.Reasoning)
	}
	if !m.Content.Empty() {
		s.openItem("message")
		s.grow("response.output_text.delta", m.Content)
	}
}

// addCalls writes the tool calls of a message, and ends the items.
func (s *stream) addCalls(calls []canonical.ToolCall) {
	s.closeItem()
	for i := range calls {
		s.call = calls[i]
		kind, delta := "function_call", "response.function_call_arguments.delta"
		if s.call.Custom() {
			kind, delta = "custom_tool_call", "response.custom_tool_call_input.delta"
		}
		s.openItem(kind)
		if in := s.call.Input(); in != "" {
			s.grow(delta, rawjson.Quote(in))
		}
		s.closeItem()
	}
}

// itemID returns the id of the open item.
func (s *stream) itemID() string {
	prefix := "ctc_"
	switch s.open {
	case "reasoning":
		prefix = "rs_"
	case "message":
		prefix = "msg_"
	case "function_call":
		prefix = "fc_"
	}
	return prefix + s.meta.ID + "_" + strconv.Itoa(len(s.items))
}

// place returns an event's members for the open item and its part.
func (s *stream) place() *rawjson.Object {
	o := rawjson.NewObject().Str("item_id", s.itemID()).Raw("output_index", strconv.AppendInt(nil, int64(len(s.items)), 10))
	switch s.open {
	case "reasoning":
		o.Raw("summary_index", []byte("0"))
	case "message":
		o.Raw("content_index", []byte("0"))
	}
	return o
}

// openItem opens an item of this kind, unless one is open.
func (s *stream) openItem(kind string) {
	if s.open == kind {
		return
	}
	s.closeItem()
	if s.open = kind; s.silent {
		return
	}
	s.emit("response.output_item.added", rawjson.NewObject().Raw("output_index", strconv.AppendInt(nil, int64(len(s.items)), 10)).Raw("item", s.item("in_progress")))
	switch kind {
	case "reasoning":
		s.emit("response.reasoning_summary_part.added", s.place().Raw("part", summaryPart(canonical.Text(`""`))))
	case "message":
		s.emit("response.content_part.added", s.place().Raw("part", outputText(canonical.Text(`""`))))
	}
}

func (s *stream) grow(kind string, delta canonical.Text) {
	if s.text = append(s.text, delta.Inner()...); s.silent {
		return
	}
	o := s.place().Raw("delta", delta)
	if s.open == "message" {
		o.Raw("logprobs", []byte("[]"))
	}
	s.emit(kind, o)
}

func summaryPart(s canonical.Text) []byte {
	return rawjson.NewObject().Str("type", "summary_text").Raw("text", s).Done()
}

func outputText(s canonical.Text) []byte {
	return rawjson.NewObject().Str("type", "output_text").Raw("annotations", []byte("[]")).Raw("logprobs", []byte("[]")).Raw("text", s).Done()
}

// openText returns the text of the open item so far.
func (s *stream) openText() canonical.Text {
	return append(append(canonical.Text{'"'}, s.text...), '"')
}

// item returns the open item so far.
func (s *stream) item(status string) []byte {
	text := s.openText()
	o := rawjson.NewObject().Str("id", s.itemID()).Str("type", s.open)
	switch s.open {
	case "reasoning":
		summary := [][]byte{}
		if !text.Empty() {
			summary = append(summary, summaryPart(text))
		}
		return o.Raw("summary", rawjson.List(summary)).Done()
	case "message":
		parts := [][]byte{}
		if status == "completed" {
			parts = append(parts, outputText(text))
		}
		return o.Str("status", status).Str("role", "assistant").Raw("content", rawjson.List(parts)).Done()
	default:
		o.Str("status", status).Str("call_id", s.call.ID)
		name := s.call.Name()
		if n, ok := s.e.names[name]; ok {
			o.Str("namespace", n.namespace)
			name = n.name
		}
		o.Str("name", name)
		if s.open == "custom_tool_call" {
			return o.Raw("input", text).Done()
		}
		return o.Raw("arguments", text).Done()
	}
}

func (s *stream) closeItem() {
	if s.open == "" {
		return
	}
	done := s.item("completed")
	if !s.silent {
		s.writeDone(done)
	}
	s.items = append(s.items, done)
	s.open = ""
	s.text = s.text[:0]
}

// writeDone writes the events of a complete item.
func (s *stream) writeDone(done []byte) {
	text := s.openText()
	switch s.open {
	case "reasoning":
		s.emit("response.reasoning_summary_text.done", s.place().Raw("text", text))
		s.emit("response.reasoning_summary_part.done", s.place().Raw("part", summaryPart(text)))
	case "message":
		s.emit("response.output_text.done", s.place().Raw("text", text).Raw("logprobs", []byte("[]")))
		s.emit("response.content_part.done", s.place().Raw("part", outputText(text)))
	case "function_call":
		s.emit("response.function_call_arguments.done", s.place().Str("name", s.call.Name()).Raw("arguments", text))
	case "custom_tool_call":
		s.emit("response.custom_tool_call_input.done", s.place().Raw("input", text))
	}
	s.emit("response.output_item.done", rawjson.NewObject().Raw("output_index", strconv.AppendInt(nil, int64(len(s.items)), 10)).Raw("item", done))
}

// Delta implements dialect.Stream.
func (s *stream) Delta(d *schema.Delta) ([]byte, error) {
	message, err := canonical.ReadAnswer(d.Delta)
	if err != nil {
		return nil, err
	}
	s.addTexts(&message)
	return s.drain(), nil
}

// Final implements dialect.Stream.
func (s *stream) Final(r *schema.Reply) ([]byte, error) {
	message, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	if !s.begun {
		s.addTexts(&message)
	}
	s.addCalls(message.ToolCalls)
	s.e.remember(s.meta, r)
	kind := "response.completed"
	if r.FinishReason == "length" || r.FinishReason == "content_filter" {
		kind = "response.incomplete"
	}
	s.emit(kind, rawjson.NewObject().Raw("response", s.response(r.FinishReason, &r.Usage, nil)))
	return s.drain(), nil
}

// Fail implements dialect.Stream.
func (s *stream) Fail(f dialect.Refusal) []byte {
	s.start()
	s.emit("response.failed", rawjson.NewObject().Raw("response", s.response("", nil, &f)))
	return s.drain()
}
