package gatetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

// ownCall is a tool call in the model's words.
type ownCall struct{ id, arguments string } // id is JSON; empty: the member is missing

// saidCalls returns an answer with calls of the tool bash.
func saidCalls(calls []ownCall) string {
	var all []string
	for _, c := range calls {
		id := ""
		if c.id != "" {
			id = `"id":` + c.id + `,`
		}
		all = append(all, fmt.Sprintf(`{%s"type":"function","function":{"name":"bash","arguments":%s}}`, id, JSON(c.arguments)))
	}
	return `{"role":"assistant","content":"I look.","tool_calls":[` + strings.Join(all, ",") + `]}`
}

// repliedCalls returns the calls in the messages of a request, and the ids of the
// results.
func repliedCalls(t *testing.T, messages []json.RawMessage) (calls []ownCall, results []string) {
	t.Helper()
	for _, raw := range messages {
		var m struct {
			Role      string
			ResultID  string `json:"tool_call_id"`
			ToolCalls []struct {
				ID       string
				Function struct{ Arguments string }
			} `json:"tool_calls"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		for _, c := range m.ToolCalls {
			calls = append(calls, ownCall{c.ID, c.Function.Arguments})
		}
		if m.Role == "tool" {
			results = append(results, m.ResultID)
		}
	}
	return calls, results
}

// idsIn returns the ids of the tool calls of an answer.
func idsIn(f Fixture, body []byte) (ids []string) {
	for _, m := range regexp.MustCompile(f.CallID).FindAllSubmatch(body, -1) {
		if id := string(m[1]); !slices.Contains(ids, id) || f.Dialect.Name() != "responses" { // it repeats items
			ids = append(ids, id)
		}
	}
	return ids
}

// callIDs: for any ids that a model gives its calls, each call has an id of its own for the
// agent, and the model's own id in later requests.
func callIDs(t *testing.T, f Fixture) {
	if f.Next == nil {
		t.Skip("its conversations have no calls")
	}
	usable := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	for name, ids := range map[string][]string{
		"good":                  {`"call_%d_a"`, `"call_%d_b"`},
		"again in each turn":    {`"call_0"`, `"call_1"`},
		"with the tool's name":  {`"functions.bash:0"`, `"functions.bash:1"`},
		"the same":              {`"call_0"`, `"call_0"`, `"call_0"`},
		"missing":               {``, `null`, `""`},
		"long":                  {JSON(strings.Repeat("x", 300)), JSON(strings.Repeat("x", 299) + "y")},
		"odd":                   {`"é /\\\"\u0000"`, `" "`},
		"those of the gate":     {`"tool_1_1"`, `"tool_1_0"`, `"tool_1_1"`},
		"another's in this one": {`"call_0"`, `"call_0_1"`, `"call_0"`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []string{schema.StreamBuffer, schema.StreamPass} {
				talkWithIDs(t, f, mode, ids, usable)
			}
		})
	}
}

func talkWithIDs(t *testing.T, f Fixture, mode string, ids []string, usable *regexp.Regexp) {
	t.Helper()
	var o ended
	turn := 0
	answer := func() []ownCall {
		var calls []ownCall
		for i, id := range ids {
			calls = append(calls, ownCall{strings.ReplaceAll(id, "%d", fmt.Sprint(turn)), fmt.Sprintf(`{"n": %d}`, 10*turn+i)})
		}
		return calls
	}
	h := New(t, f, &Model{Answer: func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		said := saidCalls(answer())
		if mode == schema.StreamPass {
			if err := frames(schema.Frame{Kind: schema.FrameDelta, Gen: "g1", Delta: &schema.Delta{V: 1, Delta: json.RawMessage(said)}}); err != nil {
				return schema.Reply{}, err
			}
		}
		return saying(said, "tool_calls")(ctx, c, frames)
	}}, schema.GateOptions{Stream: mode}, o.hear)
	body := f.Body("hi", false)
	var seen, own []string // ids of all turns: the agent's, and the conversation's
	var before []json.RawMessage
	for turn = 1; turn <= 3; turn++ {
		status, streamed := h.Ask(strings.Replace(f.Body("hi", true), "hi", fmt.Sprint("streamed ", turn), 1))
		if status != 200 {
			t.Fatalf("%s: %d %s", mode, status, streamed)
		}
		seen = append(seen, checkIDs(t, f, streamed, len(ids), usable)...)
		status, whole := h.Ask(body)
		if status != 200 {
			t.Fatalf("%s: %d %s", mode, status, whole)
		}
		messages := o.newest().Messages
		if len(messages) < len(before) || !slices.EqualFunc(before, messages[:len(before)], func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Errorf("%s: turn %d changed an earlier message: %s, then %s", mode, turn, before, messages)
		}
		before = slices.Clone(messages)
		calls, results := repliedCalls(t, messages)
		if len(calls) != len(own) || len(results) != len(own) {
			t.Fatalf("%s: turn %d has the calls %v and results %v", mode, turn, calls, results)
		}
		for i, want := range own {
			k := i/len(ids) + 1
			if calls[i].id != want || results[i] != want || calls[i].arguments != fmt.Sprintf(`{"n": %d}`, 10*k+i%len(ids)) {
				t.Errorf("%s: call %d came back as %q with the result of %q, want %q", mode, i, calls[i], results[i], want)
			}
		}
		delivered := checkIDs(t, f, whole, len(ids), usable)
		seen = append(seen, delivered...)
		for i, c := range answer() {
			var id string
			if c.id != "" {
				if err := json.Unmarshal([]byte(c.id), &id); err != nil {
					t.Fatal(err)
				}
			}
			if id == "" { // the model gave none
				id = delivered[i]
			}
			own = append(own, id)
		}
		body = f.Next(t, body, whole)
	}
	slices.Sort(seen)
	if n := len(slices.Compact(seen)); n != 6*len(ids) {
		t.Errorf("%s: %d different ids of %d calls", mode, n, 6*len(ids))
	}
}

func checkIDs(t *testing.T, f Fixture, body []byte, want int, usable *regexp.Regexp) []string {
	t.Helper()
	ids := idsIn(f, body)
	if len(ids) != want {
		t.Fatalf("%d ids %q, want %d, in %s", len(ids), ids, want, body)
	}
	for _, id := range ids {
		if !usable.MatchString(id) {
			t.Errorf("the id %q cannot be used by every agent", id)
		}
	}
	return ids
}

// ownArguments: clients parse arguments and write them again, and the gate wraps
// arguments that are no object. The conversation has the model's own text, unless
// the agent changed its meaning.
func ownArguments(t *testing.T, f Fixture) {
	if f.Next == nil {
		t.Skip("its conversations have no calls")
	}
	own := append([]string{
		`{"command": "ls", "n": 1.0}`, "{\n  \"command\": \"ls\"\n}", `{"command":"\u00e9"}`, `{"z":1,"a":{"y":[1, 2],"b":null}}`, `{"n":12345678901234567890}`,
		strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), `{"n":` + strings.Repeat("9", 5000) + `}`,
	}, Garbage()...)
	for _, text := range own {
		var o ended
		h := New(t, f, &Model{Answer: saying(saidCalls([]ownCall{{`"c1"`, text}}), "tool_calls")}, schema.GateOptions{}, o.hear)
		first := f.Body("hi", false)
		_, answer := h.Ask(first)
		next := f.Next(t, first, answer)
		if status, answer := h.Ask(next); status != 200 {
			t.Fatalf("%.40q: %d %s", text, status, answer)
		}
		if calls, _ := repliedCalls(t, o.newest().Messages); len(calls) != 1 || calls[0] != (ownCall{"c1", text}) {
			t.Errorf("%.40q came back as %.200q", text, calls)
		}
	}
	var o ended
	h := New(t, f, &Model{Answer: saying(saidCalls([]ownCall{{`"c1"`, `{"command": "list"}`}}), "tool_calls")}, schema.GateOptions{}, o.hear)
	first := f.Body("hi", false)
	_, answer := h.Ask(first)
	changed := strings.ReplaceAll(f.Next(t, first, answer), `list`, `pwd`)
	if status, answer := h.Ask(changed); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	if calls, _ := repliedCalls(t, o.newest().Messages); len(calls) != 1 || calls[0].arguments != `{"command":"pwd"}` {
		t.Errorf("arguments that the agent changed came as %q", calls)
	}
}

// finishReasons: agents decide by the reason whether to ask again, so it agrees with
// the calls, also if the model's does not.
func finishReasons(t *testing.T, f Fixture) {
	text := `{"role":"assistant","content":"done"}`
	whole, cut := saidCalls([]ownCall{{`"c1"`, `{"command":"ls"}`}}), saidCalls([]ownCall{{`"c1"`, `{"command":"l`}})
	for _, tt := range []struct{ message, reason, want string }{
		{text, "stop", "stop"},
		{text, "length", "length"},
		{text, "content_filter", "content_filter"},
		{text, "tool_calls", "stop"},
		{`{"role":"assistant","content":"done","tool_calls":[]}`, "tool_calls", "stop"},
		{`{"role":"assistant","content":"done","tool_calls":null}`, "tool_calls", "stop"},
		{whole, "tool_calls", "tool_calls"},
		{whole, "stop", "tool_calls"},
		{whole, "length", "tool_calls"},
		{whole, "content_filter", "tool_calls"},
		{cut, "stop", "tool_calls"},
		{cut, "tool_calls", "tool_calls"},
		{cut, "length", "length"},
		{cut, "content_filter", "content_filter"},
	} {
		for _, stream := range []bool{false, true} {
			var o ended
			h := New(t, f, &Model{Answer: saying(tt.message, tt.reason)}, schema.GateOptions{}, o.hear)
			status, body := h.Ask(f.Body("hi", stream))
			if status != 200 || !bytes.Contains(body, []byte(f.Reasons[tt.want])) || bytes.Contains(body, []byte(`"tool_calls":[]`)) {
				t.Errorf("%s with %s, stream %v: %d %s, want %s", tt.message, tt.reason, stream, status, body, f.Reasons[tt.want])
			}
			if ends := o.all(); len(ends) != 1 || ends[0].Reply == nil || ends[0].Reply.FinishReason != tt.reason || string(ends[0].Reply.Message) != tt.message {
				t.Errorf("%s with %s: the transcript has not the model's own answer", tt.message, tt.reason)
			}
		}
	}
}
