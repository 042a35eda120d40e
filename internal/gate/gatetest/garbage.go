package gatetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/schema"
)

// saying answers every call with the same message.
func saying(message, finish string) func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
	return func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
		r := Text("")
		r.Message, r.FinishReason = json.RawMessage(message), finish
		return r, nil
	}
}

func toolCall(arguments string) string {
	text, err := json.Marshal(arguments)
	if err != nil {
		panic(err) // a string always encodes
	}
	return `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":` + string(text) + `}}]}`
}

// unwritable: an answer in a form that agents cannot read is a failure that
// names the field, and does not count.
func unwritable(t *testing.T, f Fixture) {
	for message, field := range map[string]string{
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":{"command":"ls"}}}]}`: "tool_calls[0].function.arguments",
		`{"role":"assistant","content":null,"tool_calls":[{"id":7,"type":"function","function":{"name":"bash","arguments":"{}"}}]}`:                "tool_calls[0].id",
		`{"role":"assistant","content":7}`: "message.content",
		`{"role":"assistant"`:              "message",
	} {
		for _, stream := range []bool{false, true} {
			var o ended
			h := New(t, f, &Model{Answer: saying(message, "stop")}, schema.GateOptions{}, o.hear)
			status, body := h.Ask(f.Body("hi", stream))
			_, committed := h.Session.Stats()
			ends := o.all()
			if status != 502 || len(committed) != 0 || len(ends) != 1 || ends[0].Fault == nil || ends[0].Reply != nil {
				t.Fatalf("%s, stream %v: %d %s, committed %v, %+v", message, stream, status, body, committed, ends)
			}
			if fault := ends[0].Fault; fault.Code != schema.CodeBadAnswer || fault.Who != schema.WhoTrainer || !strings.Contains(fault.Message, field) {
				t.Errorf("%s: %v, want it to name %s", message, fault, field)
			}
		}
	}
}

// ended is an Observer of the ends of calls.
type ended struct {
	mu   sync.Mutex
	ends []gate.CallEnd
	call schema.Call // the newest
}

func (o *ended) hear(c *gate.Config)             { c.Observer = o }
func (o *ended) CallDelta(int, *schema.Delta)    {}
func (o *ended) ToolEnded(gate.ToolEnd)          {}
func (o *ended) CallWaits(schema.WaitEvent)      {}
func (o *ended) CallBegan(_ int, c *schema.Call) { o.mu.Lock(); o.call = *c; o.mu.Unlock() }
func (o *ended) CallEnded(_ int, e gate.CallEnd) {
	o.mu.Lock()
	o.ends = append(o.ends, e)
	o.mu.Unlock()
}
func (o *ended) all() []gate.CallEnd { o.mu.Lock(); defer o.mu.Unlock(); return o.ends }
func (o *ended) newest() schema.Call { o.mu.Lock(); defer o.mu.Unlock(); return o.call }

// Garbage returns arguments of a tool that are not a JSON object.
func Garbage() []string {
	return []string{``, `{}`, `[]`, `[{"command":"ls"}]`, `null`, `17`, `"ls"`, `{"command":"ls`, `{"command": "ls" `, `command: ls`, "{\n", `{"command":"\ud83d"}`, strings.Repeat("x", 200_000)}
}

// badArguments: clients can read a tool call with any text as arguments, and
// the transcript has the model's own text.
func badArguments(t *testing.T, f Fixture) {
	for _, arguments := range Garbage() {
		for _, mode := range []string{schema.StreamBuffer, schema.StreamPass} {
			for _, stream := range []bool{false, true} {
				var o ended
				message := toolCall(arguments)
				whole := saying(message, "tool_calls")
				h := New(t, f, &Model{Answer: func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
					half := len(arguments) / 2
					for i, piece := range []string{arguments[:half], arguments[half:]} {
						text, _ := json.Marshal(piece) // strings always encode
						head := `"id":"c1","type":"function","function":{"name":"bash","arguments":`
						if i > 0 {
							head = `"function":{"arguments":`
						}
						d := &schema.Delta{V: 1, Delta: json.RawMessage(`{"tool_calls":[{"index":0,` + head + string(text) + `}}]}`)}
						if err := frames(schema.Frame{Kind: schema.FrameDelta, Gen: "g1", Delta: d}); err != nil {
							return schema.Reply{}, err
						}
					}
					return whole(ctx, c, frames)
				}}, schema.GateOptions{Stream: mode}, o.hear)
				status, body := h.Ask(f.Body("hi", stream))
				if status != 200 {
					t.Fatalf("%.40q, %s, stream %v: %d %.300s", arguments, mode, stream, status, body)
				}
				_, tools := f.Read(t, body, stream)
				_, committed := h.Session.Stats()
				if len(tools) != 1 || !strings.HasPrefix(tools[0], "bash ") || len(committed) != 1 {
					t.Fatalf("%.40q, %s, stream %v: %.300q, committed %v", arguments, mode, stream, tools, committed)
				}
				if ends := o.all(); len(ends) != 1 || ends[0].Reply == nil || string(ends[0].Reply.Message) != message {
					t.Errorf("%.40q, %s, stream %v: the transcript has not the model's own text", arguments, mode, stream)
				}
			}
		}
	}
}

// differing: a stream with pieces that differ from the whole answer is a failure
// that names the field, and does not count.
func differing(t *testing.T, f Fixture) {
	delta := func(s string) schema.Frame {
		return schema.Frame{Kind: schema.FrameDelta, Gen: "g1", Delta: &schema.Delta{V: 1, Delta: json.RawMessage(s), CompletionIDs: schema.PackTokenIDs([]int32{434343})}}
	}
	call := func(id, name, arguments string) string {
		return fmt.Sprintf(`{"tool_calls":[{"index":0,"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}]}`, id, name, arguments)
	}
	for _, tt := range []struct{ piece, whole, field string }{
		{`{"content":"a"}`, `{"content":"b"}`, "content"},
		{`{"content":"a"}`, `{"content":null}`, "content"},
		{`{"reasoning_content":"a"}`, `{"reasoning_content":"ab"}`, "reasoning_content"},
		{`{"content":"a"}`, `{"content":"a","tool_calls":[{"id":"c1","function":{"name":"bash","arguments":"{}"}}]}`, "tool_calls"},
		{call("c1", "bash", "{}"), call("c2", "bash", "{}"), "tool_calls[0].id"},
		{call("c1", "bash", "{}"), call("c1", "sh", "{}"), "tool_calls[0].name"},
		{call("c1", "bash", `{"a":1}`), call("c1", "bash", `{"a": 1}`), "tool_calls[0].arguments"},
		{`{"content":"\u00e9"}`, `{"content":"é"}`, "completion_ids"}, // the text is the same
		{`{"content":5}`, `{"content":"5"}`, "delta.content"},
	} {
		var o ended
		h := New(t, f, &Model{Answer: func(_ context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
			if err := frames(delta(tt.piece)); err != nil {
				return schema.Reply{}, err
			}
			r := Text("")
			r.Message = json.RawMessage(tt.whole)
			if tt.field == "completion_ids" {
				r.CompletionIDs = schema.PackTokenIDs([]int32{5})
			}
			return r, frames(schema.Frame{Kind: schema.FrameFinal, Gen: "g1", Reply: &r}) // which refuses it
		}}, schema.GateOptions{Stream: schema.StreamPass}, o.hear)
		_, body := h.Ask(f.Body("hi", true))
		_, committed := h.Session.Stats()
		ends := o.all()
		if len(committed) != 0 || len(ends) != 1 || ends[0].Fault == nil || !strings.Contains(string(body), "error") {
			t.Fatalf("%s and %s: committed %v, %+v, %s", tt.piece, tt.whole, committed, ends, body)
		}
		if fault := ends[0].Fault; fault.Code != schema.CodeBadAnswer || !strings.Contains(fault.Message, tt.field+": ") {
			t.Errorf("%s and %s: %v, want it to name %s", tt.piece, tt.whole, fault, tt.field)
		}
	}
}

// noUnicode: half a character in a request or an answer fails neither that call
// nor a later one.
func noUnicode(t *testing.T, f Fixture) {
	var o ended
	own := `{"role":"assistant","content":"half \ud83d of it"}`
	h := New(t, f, &Model{Answer: saying(own, "stop")}, schema.GateOptions{}, o.hear)
	for i, half := range []string{`\ud83d`, `\ude00\ud83d`, "\xff\xc3"} {
		for _, stream := range []bool{false, true} {
			body := strings.Replace(f.Body(fmt.Sprintf("%d %v cut HALF here", i, stream), stream), "HALF", half, 1)
			status, answer := h.Ask(body)
			if status != 200 {
				t.Fatalf("%q: %d %s", half, status, answer)
			}
			if text, _ := f.Read(t, answer, stream); text != "half \ufffd of it" {
				t.Errorf("%q: it reads %q", half, text)
			}
			call := o.newest()
			last := string(call.Messages[len(call.Messages)-1])
			if !json.Valid([]byte(last)) || !strings.Contains(strings.ReplaceAll(last, `\ufffd`, "\ufffd"), "cut \ufffd") || gate.NoteOf(&call) == "" {
				t.Errorf("%q became %s, note %q", half, last, gate.NoteOf(&call))
			}
			ends := o.all()
			if e := ends[len(ends)-1]; e.Reply == nil || string(e.Reply.Message) != own || e.Note == "" {
				t.Errorf("%q: the end of the call is %+v", half, e)
			}
		}
	}
	if status, _ := h.Ask(f.Body("whole again", false)); status != 200 {
		t.Errorf("the next request: %d", status)
	}
	if call := o.newest(); gate.NoteOf(&call) != "" {
		t.Errorf("the next request has the note %q", gate.NoteOf(&call))
	}
}
