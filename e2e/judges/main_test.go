// Package judges tests a gate with the official client libraries of every
// dialect, and checks the values that they decode. The package is in a separate
// module, so that the main module does not depend on these libraries.
package judges

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/schema"
)

// bench is a gate with a scripted model: it reasons, writes text and calls two
// tools, and ends the conversation in the next call. It refuses a call with the
// prompt "refuse".
type bench struct {
	url string
	key string

	mu    sync.Mutex
	calls []schema.Call
}

func newBench(t *testing.T, stream string) *bench {
	t.Helper()
	b := &bench{}
	r := schema.Request{Gate: schema.GateOptions{Stream: stream, MaxRepeats: 1 << 30}}.WithDefaults()
	s := gate.Open(t.Context(), gate.Config{Rollout: "alpha-1", Attempt: 1, ModelName: "policy", Options: r.Gate, Model: b, Dialects: gate.Dialects(), Log: zerolog.Nop()})
	srv := httptest.NewServer(s)
	t.Cleanup(func() { s.Close(); srv.CloseClientConnections(); srv.Close() })
	b.url, b.key = srv.URL, s.Key()
	return b
}

const (
	firstCall  = `{"command":"ls -la \"x\""}`
	secondCall = `{"command":"pwd"}`
)

// Complete implements gate.Model.
func (b *bench) Complete(_ context.Context, c schema.Call, frames func(schema.Frame) error) error {
	b.mu.Lock()
	b.calls = append(b.calls, c)
	b.mu.Unlock()
	turns := 0
	for _, m := range c.Messages {
		if strings.HasPrefix(string(m), `{"role":"assistant"`) || strings.Contains(string(m), `"role":"assistant"`) {
			turns++
		}
		if strings.Contains(string(m), `"refuse"`) {
			return &schema.Fault{Code: "x", Message: "no", Status: 429}
		}
	}
	r := schema.Reply{FinishReason: "stop", Usage: schema.Usage{PromptTokens: 20, CompletionTokens: 4}}
	deltas := []string{`{"role":"assistant","content":"Do"}`, `{"content":"ne."}`}
	r.Message = json.RawMessage(`{"role":"assistant","content":"Done."}`)
	if turns == 0 {
		r.FinishReason = "tool_calls"
		r.Message = json.RawMessage(`{"role":"assistant","content":"I look.","reasoning_content":"Hm, so.","tool_calls":[` +
			`{"id":"c1","type":"function","function":{"name":"bash","arguments":` + quoted(firstCall) + `}},{"id":"c2","type":"function","function":{"name":"bash","arguments":` + quoted(secondCall) + `}}]}`)
		deltas = []string{
			`{"role":"assistant","reasoning_content":"Hm,"}`, `{"reasoning_content":" so."}`, `{"content":"I "}`, `{"content":"look."}`,
			`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"bash","arguments":""}}]}`,
			`{"tool_calls":[{"index":0,"function":{"arguments":` + quoted(firstCall[:9]) + `}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":` + quoted(firstCall[9:]) + `}}]}`,
			`{"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"bash","arguments":` + quoted(secondCall) + `}}]}`,
		}
	}
	for _, d := range deltas {
		if err := frames(schema.Frame{Kind: schema.FrameDelta, Gen: "g", Delta: &schema.Delta{V: 1, Delta: json.RawMessage(d)}}); err != nil {
			return err
		}
	}
	return frames(schema.Frame{Kind: schema.FrameFinal, Gen: "g", Reply: &r})
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always encodes
	}
	return string(b)
}

// conversation is the canonical form that the second turn must have in every
// dialect. The chat dialect passes the agent's messages on unchanged.
func (b *bench) conversation(t *testing.T, dialect string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.calls) < 2 {
		t.Fatalf("%d calls came", len(b.calls))
	}
	c := b.calls[1]
	if c.Dialect != dialect || c.Model != "policy" || !strings.Contains(string(c.Tools), `"function":{"name":"bash","description":"Runs.","parameters":{`) {
		t.Errorf("got dialect %s, model %s, tools %s", c.Dialect, c.Model, c.Tools)
	}
	if dialect == "chat" {
		return
	}
	want := []string{
		`{"role":"system","content":"Be brief."}`,
		`{"role":"user","content":[{"type":"text","text":"Look."},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + png + `"}}]}`,
		`{"role":"assistant","content":"I look.","reasoning_content":"Hm, so.","tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":` + quoted(firstCall) + `}},` +
			`{"id":"c2","type":"function","function":{"name":"bash","arguments":` + quoted(secondCall) + `}}]}`,
		`{"role":"tool","tool_call_id":"c1","content":"out of c1"}`,
		`{"role":"tool","tool_call_id":"c2","content":"out of c2"}`,
	}
	if len(c.Messages) != len(want) {
		t.Fatalf("%d messages, want %d: %s", len(c.Messages), len(want), c.Messages)
	}
	for i := range want {
		if string(c.Messages[i]) != want[i] {
			t.Errorf("message %d\ngot  %s\nwant %s", i, c.Messages[i], want[i])
		}
	}
}

const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// turn is one answer as a library decoded it.
type turn struct {
	Text      string
	Reasoning string
	Tools     [][3]string // id, name, arguments
	Finish    string
	Usage     [2]int64
}

// check compares two turns with the script. Libraries without a place for
// reasoning may lose it.
func check(t *testing.T, turns []turn, finish [2]string, reasoning bool) {
	t.Helper()
	if len(turns) != 2 {
		t.Fatalf("got %+v", turns)
	}
	first, second := turns[0], turns[1]
	if first.Text != "I look." || reasoning && first.Reasoning != "Hm, so." || first.Finish != finish[0] || first.Usage != [2]int64{20, 4} || len(first.Tools) != 2 ||
		first.Tools[0] != [3]string{"c1", "bash", firstCall} || first.Tools[1] != [3]string{"c2", "bash", secondCall} {
		t.Errorf("first turn: %+v", first)
	}
	if second.Text != "Done." || len(second.Tools) != 0 || second.Finish != finish[1] {
		t.Errorf("second turn: %+v", second)
	}
}
