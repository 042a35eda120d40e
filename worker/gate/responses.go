package gate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/turngate/turngate/schema"
)

// Responses is OpenAI's Responses API
// (https://platform.openai.com/docs/api-reference/responses).
type Responses struct{}

// Name implements Dialect.
func (Responses) Name() string { return "responses" }

// Routes implements Dialect.
func (Responses) Routes() []string { return []string{"POST /v1/responses", "POST /responses"} }

// Decoder implements Dialect.
func (Responses) Decoder(m *Memory) Decoder {
	return &responsesDecoder{splitter: splitter{array: "input", memory: m}}
}

// ModelsRoutes implements Dialect.
func (Responses) ModelsRoutes() []string { return Chat{}.ModelsRoutes() }

// Sent implements Dialect: its list of models is the one of chat.
func (Responses) Sent(*http.Request) bool { return false }

// Models implements Dialect.
func (Responses) Models(name string) []byte { return Chat{}.Models(name) }

// Fail implements Dialect.
func (Responses) Fail(f Refusal) []byte { return Chat{}.Fail(f) }

// responsesEncoding writes the answer to one request.
type responsesEncoding struct {
	names   toolNames
	earlier *earlier
	history []json.RawMessage // the conversation that was answered
}

func (e *responsesEncoding) Encode(m Meta, r *schema.Reply) ([]byte, error) {
	said, err := readSaid(r.Message)
	if err != nil {
		return nil, err
	}
	s := e.stream(m)
	s.silent = true
	s.add(&said)
	s.closeItem()
	e.remember(m, r)
	return s.response(r.FinishReason, &r.Usage, nil), nil
}

// remember keeps the conversation for a request that goes on from this answer.
func (e *responsesEncoding) remember(m Meta, r *schema.Reply) {
	e.earlier.keep(responseID(m), e.history, r.Message)
}

func responseID(m Meta) string { return "resp_" + m.ID }

// Stream implements Encoding.
func (e *responsesEncoding) Stream(m Meta) Stream { return e.stream(m) }

func (e *responsesEncoding) stream(m Meta) *responsesStream {
	return &responsesStream{e: e, meta: m, calls: map[int]bool{}}
}

// responsesStream writes the events of one answer, and collects its items.
type responsesStream struct {
	e      *responsesEncoding
	meta   Meta
	b      []byte // events that were not taken yet
	seq    int
	begun  bool
	silent bool     // only the items are wanted
	items  [][]byte // finished ones
	open   string   // type of the item that is open; empty: none
	call   toolCall // if that is one
	index  int      // its index among the tool calls
	text   []byte   // that it has by now, as JSON without quotes
	calls  map[int]bool
}

func (*responsesStream) ContentType() string { return eventStream }

func (*responsesStream) KeepAlive() []byte {
	return event(nil, "keepalive", []byte(`{"type":"keepalive","sequence_number":0}`))
}

// emit writes one event; fields are the members behind its type and number.
func (s *responsesStream) emit(kind string, o *object) {
	head := newObject().str("type", kind).raw("sequence_number", strconv.AppendInt(nil, int64(s.seq), 10))
	s.seq++
	if len(o.b) > 1 {
		head.b = append(append(head.b, ','), o.b[1:]...)
	}
	s.b = event(s.b, kind, head.done())
}

func (s *responsesStream) take() []byte {
	b := s.b
	s.b = nil
	return b
}

func (s *responsesStream) start() {
	if s.begun {
		return
	}
	if s.begun = true; s.silent {
		return
	}
	for _, kind := range []string{"response.created", "response.in_progress"} {
		s.emit(kind, newObject().raw("response", s.response("", nil, nil)))
	}
}

// response is the whole object as it is by now. No usage: it is in progress.
func (s *responsesStream) response(reason string, usage *schema.Usage, failed *Refusal) []byte {
	status, incomplete, fault, used := "in_progress", "null", "null", "null"
	switch {
	case failed != nil:
		status, fault = "failed", string(newObject().str("code", responsesCode(failed)).str("message", failed.Message).done())
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
	o := newObject().str("id", responseID(s.meta)).str("object", "response").raw("created_at", strconv.AppendInt(nil, s.meta.Created, 10))
	o.str("status", status).raw("error", []byte(fault)).raw("incomplete_details", []byte(incomplete)).str("model", s.meta.Model)
	o.raw("output", list(s.items)).raw("usage", []byte(used))
	for _, m := range [][2]string{{"instructions", "null"}, {"metadata", "{}"}, {"parallel_tool_calls", "true"}, {"temperature", "null"}, {"tool_choice", `"auto"`}, {"tools", "[]"}, {"top_p", "null"}} {
		o.raw(m[0], []byte(m[1]))
	}
	return o.done()
}

func responsesCode(f *Refusal) string {
	if f.Status >= 500 {
		return "server_error"
	}
	return f.Code
}

// add writes what a message or a piece of one says.
func (s *responsesStream) add(m *said) {
	s.start()
	if !m.reasoning.empty() {
		s.openItem("reasoning", 0, nil)
		s.grow("response.reasoning_summary_text.delta", m.reasoning)
	}
	if !m.content.empty() {
		s.openItem("message", 0, nil)
		s.grow("response.output_text.delta", m.content)
	}
	for i := range m.toolCalls {
		c := &m.toolCalls[i]
		kind, delta := "function_call", "response.function_call_arguments.delta"
		if c.custom() || s.open == "custom_tool_call" && s.index == c.index {
			kind, delta = "custom_tool_call", "response.custom_tool_call_input.delta"
		}
		s.openItem(kind, c.index, c)
		s.calls[c.index] = true
		if in := c.input(); in != "" {
			s.grow(delta, quoted(in))
		}
	}
}

// itemID names the item that is open.
func (s *responsesStream) itemID() string {
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

// place says which item and part an event is about.
func (s *responsesStream) place() *object {
	o := newObject().str("item_id", s.itemID()).raw("output_index", strconv.AppendInt(nil, int64(len(s.items)), 10))
	switch s.open {
	case "reasoning":
		o.raw("summary_index", []byte("0"))
	case "message":
		o.raw("content_index", []byte("0"))
	}
	return o
}

// openItem makes sure that the item of this kind is the open one.
func (s *responsesStream) openItem(kind string, index int, c *toolCall) {
	if s.open == kind && s.index == index {
		return
	}
	s.closeItem()
	s.open, s.index = kind, index
	if c != nil {
		s.call = *c
	}
	if s.silent {
		return
	}
	s.emit("response.output_item.added", newObject().raw("output_index", strconv.AppendInt(nil, int64(len(s.items)), 10)).raw("item", s.item("in_progress")))
	switch kind {
	case "reasoning":
		s.emit("response.reasoning_summary_part.added", s.place().raw("part", summaryPart(text(`""`))))
	case "message":
		s.emit("response.content_part.added", s.place().raw("part", outputText(text(`""`))))
	}
}

func (s *responsesStream) grow(kind string, delta text) {
	if s.text = append(s.text, delta.inner()...); s.silent {
		return
	}
	o := s.place().raw("delta", delta)
	if s.open == "message" {
		o.raw("logprobs", []byte("[]"))
	}
	s.emit(kind, o)
}

func summaryPart(s text) []byte {
	return newObject().str("type", "summary_text").raw("text", s).done()
}

func outputText(s text) []byte {
	return newObject().str("type", "output_text").raw("annotations", []byte("[]")).raw("logprobs", []byte("[]")).raw("text", s).done()
}

// said is the text of the open item as it is by now.
func (s *responsesStream) said() text { return append(append(text{'"'}, s.text...), '"') }

// item is the open item as it is by now.
func (s *responsesStream) item(status string) []byte {
	text := s.said()
	o := newObject().str("id", s.itemID()).str("type", s.open)
	switch s.open {
	case "reasoning":
		summary := [][]byte{}
		if !text.empty() {
			summary = append(summary, summaryPart(text))
		}
		return o.raw("summary", list(summary)).done()
	case "message":
		parts := [][]byte{}
		if status == "completed" {
			parts = append(parts, outputText(text))
		}
		return o.str("status", status).str("role", "assistant").raw("content", list(parts)).done()
	default:
		o.str("status", status).str("call_id", s.call.id)
		name := s.call.name()
		if n, ok := s.e.names[name]; ok {
			o.str("namespace", n.namespace)
			name = n.name
		}
		o.str("name", name)
		if s.open == "custom_tool_call" {
			return o.raw("input", text).done()
		}
		return o.raw("arguments", text).done()
	}
}

func (s *responsesStream) closeItem() {
	if s.open == "" {
		return
	}
	done := s.item("completed")
	if !s.silent {
		s.tellDone(done)
	}
	s.items = append(s.items, done)
	s.open = ""
	s.text = s.text[:0]
}

// tellDone writes the events of an item that is complete.
func (s *responsesStream) tellDone(done []byte) {
	text := s.said()
	switch s.open {
	case "reasoning":
		s.emit("response.reasoning_summary_text.done", s.place().raw("text", text))
		s.emit("response.reasoning_summary_part.done", s.place().raw("part", summaryPart(text)))
	case "message":
		s.emit("response.output_text.done", s.place().raw("text", text).raw("logprobs", []byte("[]")))
		s.emit("response.content_part.done", s.place().raw("part", outputText(text)))
	case "function_call":
		s.emit("response.function_call_arguments.done", s.place().str("name", s.call.name()).raw("arguments", text))
	case "custom_tool_call":
		s.emit("response.custom_tool_call_input.done", s.place().raw("input", text))
	}
	s.emit("response.output_item.done", newObject().raw("output_index", strconv.AppendInt(nil, int64(len(s.items)), 10)).raw("item", done))
}

// Delta implements Stream.
func (s *responsesStream) Delta(d *schema.Delta) ([]byte, error) {
	said, err := readSaid(d.Delta)
	if err != nil {
		return nil, err
	}
	for i := range said.toolCalls {
		if at := said.toolCalls[i].index; s.calls[at] && (s.index != at || s.open != "function_call" && s.open != "custom_tool_call") {
			return nil, fmt.Errorf("tool call %d goes on after another item began", at)
		}
	}
	s.add(&said)
	return s.take(), nil
}

// Final implements Stream.
func (s *responsesStream) Final(r *schema.Reply) ([]byte, error) {
	if !s.begun {
		said, err := readSaid(r.Message)
		if err != nil {
			return nil, err
		}
		s.add(&said)
	}
	s.closeItem()
	s.e.remember(s.meta, r)
	kind := "response.completed"
	if r.FinishReason == "length" || r.FinishReason == "content_filter" {
		kind = "response.incomplete"
	}
	s.emit(kind, newObject().raw("response", s.response(r.FinishReason, &r.Usage, nil)))
	return s.take(), nil
}

// Fail implements Stream.
func (s *responsesStream) Fail(f Refusal) []byte {
	s.start()
	s.emit("response.failed", newObject().raw("response", s.response("", nil, &f)))
	return s.take()
}
