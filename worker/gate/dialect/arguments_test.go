package dialect_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate/dialect"
	"github.com/turngate/turngate/worker/gate/gatetest"
	"github.com/turngate/turngate/worker/gate/history"
)

// TestAConversationKeepsTheModelsOwnArguments in the dialects with objects as
// arguments: clients parse them and write them again, and the gate wrapped
// arguments that are no object.
func TestAConversationKeepsTheModelsOwnArguments(t *testing.T) {
	for _, f := range gatetest.Fixtures() {
		if f.Dialect.Name() != "messages" && f.Dialect.Name() != "gemini" {
			continue // the others have the text itself
		}
		t.Run(f.Dialect.Name(), func(t *testing.T) {
			for _, own := range append([]string{`{"command": "ls", "n": 1.0}`, "{\n  \"command\": \"ls\"\n}", `{"command":"\u00e9"}`}, gatetest.Garbage()...) {
				d := history.NewReader(f.Dialect, history.NewMemory(1<<20))
				req, err := gatetest.DecodeWith(d, gatetest.Posted(f.Talk.Path), []byte(f.Talk.Body([]string{"begin"}, []string{"bash"}, 1)))
				if err != nil {
					t.Fatal(err)
				}
				quoted, err := json.Marshal(own)
				if err != nil {
					t.Fatal(err)
				}
				reply := schema.Reply{FinishReason: "tool_calls", Message: json.RawMessage(`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":` + string(quoted) + `}}]}`)}
				answer, err := req.Encoding.Encode(dialect.Meta{}, &reply)
				if err != nil {
					t.Fatal(err)
				}
				// A client parses the answer and writes it again.
				var next string
				if f.Dialect.Name() == "messages" {
					var a struct{ Content any }
					if err := json.Unmarshal(answer, &a); err != nil {
						t.Fatal(err)
					}
					next = gatetest.JSON(object{"messages": []any{object{"role": "user", "content": "begin"}, object{"role": "assistant", "content": a.Content}}})
				} else {
					var a struct{ Candidates []struct{ Content any } }
					if err := json.Unmarshal(answer, &a); err != nil {
						t.Fatal(err)
					}
					next = gatetest.JSON(object{"contents": []any{object{"role": "user", "parts": []any{object{"text": "begin"}}}, a.Candidates[0].Content}})
				}
				for range 2 { // the second time the whole body is read again
					again, err := gatetest.DecodeWith(d, gatetest.Posted(f.Talk.Path), []byte(next))
					if err != nil {
						t.Fatalf("%.40q: %v", own, err)
					}
					var got struct {
						Calls []struct {
							ID       string
							Function struct{ Arguments string }
						} `json:"tool_calls"`
					}
					if err := json.Unmarshal(again.Call.Messages[len(again.Call.Messages)-1], &got); err != nil {
						t.Fatal(err)
					}
					if len(got.Calls) != 1 || got.Calls[0].ID != "c1" || got.Calls[0].Function.Arguments != own {
						t.Errorf("%.40q came back as %.200q", own, got.Calls)
					}
					d.Forget()
				}
				// Arguments that an agent changed are kept as changed.
				changed, err := gatetest.DecodeWith(d, gatetest.Posted(f.Talk.Path), []byte(strings.NewReplacer(`"input":{`, `"input":{"more":1,`, `"args":{`, `"args":{"more":1,`, `{"more":1,}`, `{"more":1}`).Replace(next)))
				if err == nil && strings.Contains(string(changed.Call.Messages[len(changed.Call.Messages)-1]), string(quoted)) {
					t.Errorf("%.40q: what the agent changed is lost", own)
				}
				d.Close()
			}
		})
	}
}

type object = map[string]any
