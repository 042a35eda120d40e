package gatetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

// ownReasoning: many agents drop the reasoning of earlier turns. If the reply asks for it,
// it comes back with the calls of its answer, under the model's own name.
func ownReasoning(t *testing.T, f Fixture) {
	if f.Next == nil {
		t.Skip("its conversations have no calls")
	}
	drops := func(t *testing.T, body string) string { return JSON(withoutReasoning(parsed(t, []byte(body)))) }
	keeps := func(_ *testing.T, body string) string { return body }
	edits := func(_ *testing.T, body string) string { return strings.ReplaceAll(body, "musing", "edited") }
	for _, tt := range []struct {
		about, member string
		asked         bool
		agent         func(*testing.T, string) string
		want          string // of the first turn; empty: none
	}{
		{"dropped", "reasoning_content", true, drops, `"reasoning_content":"musing 1\n\u00e9"`},
		{"dropped, under the newer name", "reasoning", true, drops, `"reasoning":"musing 1\n\u00e9"`},
		{"kept, under the newer name", "reasoning", true, keeps, `"reasoning":"musing 1\n\u00e9"`},
		{"edited", "reasoning_content", true, edits, `"reasoning_content":"edited 1\n`},
		{"dropped, and not asked for", "reasoning_content", false, drops, ""},
	} {
		t.Run(tt.about, func(t *testing.T) {
			var o ended
			turn := 0
			h := New(t, f, &Model{Answer: func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
				turn++
				said := saidCalls([]ownCall{{`"call_0"`, `{"n": 1}`}, {``, `{"n": 2}`}})
				r, err := saying(strings.Replace(said, `"content"`, fmt.Sprintf(`%q:"musing %d\n\u00e9","content"`, tt.member, turn), 1), "tool_calls")(ctx, c, frames)
				r.KeepReasoning = tt.asked
				return r, err
			}}, schema.GateOptions{}, o.hear)
			body := f.Body("hi", false)
			var before []json.RawMessage
			for range 3 {
				status, answer := h.Ask(body)
				if status != 200 {
					t.Fatalf("%d %s", status, answer)
				}
				messages := o.newest().Messages
				if len(messages) < len(before) || !slices.EqualFunc(before, messages[:len(before)], func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
					t.Errorf("an earlier message changed: %s, then %s", before, messages)
				}
				before = messages
				body = tt.agent(t, f.Next(t, body, answer))
			}
			turns := 0
			for _, m := range before {
				if !strings.Contains(string(m), `"tool_calls"`) {
					continue
				}
				turns++
				want := strings.Replace(tt.want, "1", fmt.Sprint(turns), 1)
				if n := strings.Count(string(m), `"reasoning`); n > 1 || (n == 1) != (want != "") || !strings.Contains(string(m), want) {
					t.Errorf("turn %d came back as %s, want %s", turns, m, want)
				}
			}
			if turns != 2 {
				t.Errorf("%d turns in %s", turns, before)
			}
		})
	}
}

// withoutReasoning removes reasoning in the form of any dialect.
func withoutReasoning(v any) any {
	switch v := v.(type) {
	case object:
		for name, value := range v {
			if strings.HasPrefix(name, "reasoning") {
				delete(v, name)
			} else {
				v[name] = withoutReasoning(value)
			}
		}
	case []any:
		kept := []any{}
		for _, value := range v {
			if o, ok := value.(object); ok && (o["thought"] == true || o["type"] == "thinking" || o["type"] == "reasoning") {
				continue
			}
			kept = append(kept, withoutReasoning(value))
		}
		return kept
	}
	return v
}
