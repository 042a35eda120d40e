package playback_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/playback"
)

const withTools = `{"call":1,"request":{"tag":"agent","messages":[{"role":"user","content":"go"}]}}
{"call":1,"reply":{"message":{"role":"assistant","content":"A"},"finish_reason":"tool_calls"}}
{"tool":"look","arguments":{"at":"a","deep":true},"text":"first"}
{"tool":"look","arguments":{"at":"a","deep":true},"text":"second"}
{"tool":"look","arguments":{"at":"b"},"text":"no b","is_error":true}
{"tool":"move","arguments":{"to":"c"},"fault":{"code":"timeout","message":"it took too long"}}
`

func loadTools(t *testing.T) *playback.Recording {
	t.Helper()
	r, err := playback.Load(pack(t, withTools))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.Tools(), " "); got != "look move" {
		t.Errorf("got the tools %q", got)
	}
	return r
}

// use calls a tool, and joins its result and its error.
func use(t *testing.T, r *playback.Recording, attempt int, name, arguments string) string {
	t.Helper()
	text, err := r.Tool(t.Context(), "beta-1", attempt, name, json.RawMessage(arguments))
	if err != nil {
		return text + "!" + err.Error()
	}
	return text
}

func TestTheSameToolCallsGetTheSameResults(t *testing.T) {
	r := loadTools(t)
	ask(t, r, "beta-1/1/1", "agent", first)
	for _, c := range [][3]string{
		{"look", `{"at":"b"}`, "!no b"}, // calls at the same time may come in another order
		{"look", `{"deep": true, "at": "a"}`, "first"},
		{"look", `{"at":"a","deep":true}`, "second"},
		{"move", `{"to":"c"}`, "!it took too long"},
	} {
		if got := use(t, r, 1, c[0], c[1]); got != c[2] {
			t.Errorf("%s: got %q, want %q", c[1], got, c[2])
		}
	}
	if p := r.Reports(); len(p) != 1 || !p[0].Same() || p[0].AskedTools != 4 || p[0].RecordedTools != 4 {
		t.Errorf("got %+v", p)
	}
}

func TestTheFirstDivergenceMayBeAToolCall(t *testing.T) {
	r := loadTools(t)
	ask(t, r, "beta-1/1/1", "agent", first)
	if got := use(t, r, 1, "look", `{"at":"a","deep":false}`); got != "first" {
		t.Errorf("the agent cannot go on: %q", got)
	}
	if got := use(t, r, 1, "move", `{"to":"c"}`); got != "!it took too long" {
		t.Errorf("got %q", got)
	}
	if got := use(t, r, 1, "move", `{"to":"c"}`); !strings.Contains(got, "no call of the tool move left") {
		t.Errorf("got %q", got)
	}
	p := r.Reports()[0]
	if p.Same() || p.Others != 1 || len(p.MissingTools) != 2 || p.MissingTools[0] != 2 {
		t.Errorf("got %+v", p)
	}
	if d := p.Diverged; d == nil || d.Tool != "look" || d.Call != 1 || d.Recorded != 1 || !strings.Contains(d.Diff, `- `) || !strings.Contains(d.Diff, `+   "deep": false`) {
		t.Errorf("got %+v", d)
	}
	if got := use(t, r, 2, "look", `{"at":"a","deep":true}`); got != "first" { // a new attempt begins again
		t.Errorf("got %q", got)
	}
	if p := r.Reports()[0]; p.Diverged != nil || p.AskedTools != 1 {
		t.Errorf("got %+v", p)
	}
}
