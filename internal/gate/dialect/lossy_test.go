package dialect_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/dialect/anthropic"
	"github.com/turngate/turngate/internal/gate/dialect/chat"
	"github.com/turngate/turngate/internal/gate/dialect/gemini"
	"github.com/turngate/turngate/internal/gate/dialect/responses"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/schema"
)

// TestLossyRequests: each detail of a request without a place in chat is
// carried, changed as docs/gate.md says, or refused by name.
func TestLossyRequests(t *testing.T) {
	const geminiPath = "/v1beta/models/m:generateContent"
	ask := func(rest string) string { return `{"messages":[{"role":"user","content":"x"}],` + rest + `}` }
	askGemini := func(rest string) string { return `{"contents":[{"parts":[{"text":"x"}]}],` + rest + `}` }
	for _, tt := range []struct {
		name       string
		d          dialect.Dialect
		path, body string
		has        []string // parts of the call as one line of JSON
		hasNot     string
		refused    string
	}{
		{name: "output_config.format", d: anthropic.Dialect{}, body: ask(`"output_config":{"effort":"high","format":{"type":"json_schema","schema":{"type":"object"}}}`),
			has: []string{`"response_format":{"json_schema":{"name":"answer","schema":{"type":"object"}},"type":"json_schema"}`, `"output_config":{"effort":"high"}`}},
		{name: "output_config.format of another type", d: anthropic.Dialect{}, body: ask(`"output_config":{"format":{"type":"grammar"}}`), refused: `"grammar"`},
		{name: "document context", d: anthropic.Dialect{}, body: `{"messages":[{"role":"user","content":[{"type":"document","context":"An invoice.","source":{"type":"url","url":"https://x/a.pdf"}}]}]}`,
			has: []string{`{"text":"An invoice.","type":"text"},{"file":{"file_data":"https://x/a.pdf"},"type":"file"}`}},
		{name: "members of a document", d: anthropic.Dialect{}, body: `{"messages":[{"role":"user","content":[{"type":"document","page":3,"citations":{"enabled":true},"source":{"type":"url","url":"https://x/a.pdf"}}]}]}`,
			has: []string{`"page":3`}, hasNot: "citations"},
		{name: "a text document", d: anthropic.Dialect{}, body: `{"messages":[{"role":"user","content":[{"type":"document","title":"a.txt","source":{"type":"text","media_type":"text/plain","data":"50% é\n#"}}]}]}`,
			has: []string{`"file_data":"data:text/plain;charset=utf-8;base64,NTAlIMOpCiM="`}},
		{name: "input_examples and defer_loading", d: anthropic.Dialect{}, body: ask(`"tools":[{"name":"t","input_schema":{},"input_examples":[{"a":1}],"defer_loading":true,"cache_control":{"type":"ephemeral"}}]`),
			has: []string{`"input_examples":[{"a":1}]`, `"defer_loading":true`}, hasNot: "cache_control"},
		{name: "the client's own bash", d: anthropic.Dialect{}, body: ask(`"tools":[{"type":"bash_20250124","name":"bash"}]`),
			has: []string{`"name":"bash"`, `"command":{"type":"string"}`, `"restart":{"type":"boolean"}`}},
		{name: "the client's own editor", d: anthropic.Dialect{}, body: ask(`"tools":[{"type":"text_editor_20250728","name":"str_replace_based_edit_tool"}]`),
			has: []string{`"name":"str_replace_based_edit_tool"`, `"old_str":{"type":"string"}`}},
		{name: "tools of Anthropic's whose schema only its models know", d: anthropic.Dialect{}, body: ask(`"tools":[{"type":"computer_20250124","name":"computer"}]`), refused: "computer_20250124"},
		{name: "the order of thinking, text and tools", d: anthropic.Dialect{}, body: `{"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"1","name":"t","input":{}},{"type":"thinking","thinking":"b","signature":""},{"type":"text","text":"c"}]}]}`,
			has: []string{`{"content":[{"text":"a","type":"text"},{"text":"c","type":"text"}],"reasoning_content":"b","role":"assistant","tool_calls":[`}},
		{name: "developer in chat", d: chat.Dialect{}, body: `{"messages":[{"role":"developer","content":"x"}]}`, has: []string{`"role":"developer"`}},
		{name: "developer in responses", d: responses.Dialect{}, body: `{"input":[{"role":"developer","content":"x"}]}`, has: []string{`"role":"system"`}},
		{name: "a custom tool in a namespace", d: responses.Dialect{}, body: `{"input":[{"type":"custom_tool_call","call_id":"1","namespace":"fs","name":"patch","input":"x"}],"tools":[{"type":"namespace","name":"fs","tools":[{"type":"custom","name":"patch"}]}]}`,
			has: []string{`"custom":{"input":"x","name":"fs__patch"}`, `"custom":{"name":"fs__patch"}`}},
		{name: "a refusal in the history", d: responses.Dialect{}, body: `{"input":[{"role":"assistant","content":[{"type":"refusal","refusal":"No."}]}]}`, has: []string{`"content":"No."`}},
		{name: "a function call of the user", d: gemini.Dialect{}, path: geminiPath, body: `{"contents":[{"role":"user","parts":[{"functionCall":{"name":"f","args":{}}}]}]}`, refused: "functionCall"},
		{name: "a response of the model", d: gemini.Dialect{}, path: geminiPath, body: `{"contents":[{"role":"model","parts":[{"functionResponse":{"id":"i","name":"f","response":{}}}]}]}`, refused: "functionResponse"},
		{name: "a response in a response", d: gemini.Dialect{}, path: geminiPath, body: `{"contents":[{"parts":[{"functionResponse":{"id":"i","name":"f","response":{},"parts":[{"functionResponse":{"id":"j"}}]}}]}]}`, refused: "functionResponse"},
		{name: "members of a response", d: gemini.Dialect{}, path: geminiPath, body: `{"contents":[{"parts":[{"functionResponse":{"id":"i","name":"f","response":{},"willContinue":true}}]}]}`, has: []string{`"willContinue":true`}},
		{name: "names of files", d: gemini.Dialect{}, path: geminiPath, body: `{"contents":[{"parts":[{"inlineData":{"mimeType":"application/pdf","data":"","displayName":"a.pdf"}},{"fileData":{"fileUri":"u","displayName":"b.pdf"}}]}]}`,
			has: []string{`"filename":"a.pdf"`, `"filename":"b.pdf"`}},
		{name: "response and behavior of a function", d: gemini.Dialect{}, path: geminiPath, body: askGemini(`"tools":[{"functionDeclarations":[{"name":"f","behavior":"NON_BLOCKING","response":{"type":"STRING"},"parameters":{"type":"OBJECT"}}]}]`),
			has: []string{`"behavior":"NON_BLOCKING"`, `"response":{"type":"string"}`}},
		{name: "videoMetadata", d: gemini.Dialect{}, path: geminiPath, body: `{"contents":[{"parts":[{"fileData":{"mimeType":"video/mp4","fileUri":"https://x/a.mp4"},"videoMetadata":{"fps":2}}]}]}`,
			has: []string{`"videoMetadata":{"fps":2}`}},
		{name: "string bounds and nullable in schemas", d: gemini.Dialect{}, path: geminiPath, body: askGemini(`"tools":[{"functionDeclarations":[{"name":"f","parameters":{"type":"OBJECT","properties":{"nullable":{"type":"STRING","minLength":"1","maxLength":"9","nullable":true,"enum":["a"]},"type":{"type":"ARRAY","minItems":"2","items":{"type":"INTEGER","nullable":false}}}}}]}]`),
			has: []string{`"nullable":{"enum":["a",null],"maxLength":9,"minLength":1,"type":["string","null"]}`, `"type":{"items":{"type":"integer"},"minItems":2,"type":"array"}`}},
		{name: "the role of a result", d: gemini.Dialect{}, path: geminiPath, body: `{"contents":[{"role":"model","parts":[{"functionCall":{"id":"i","name":"f","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"id":"i","name":"f","response":{},"role":"assistant"}}]}]}`,
			refused: "role"},
		{name: "the id of a call in its result", d: anthropic.Dialect{}, body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","tool_call_id":"j"}]}]}`,
			refused: "tool_call_id"},
		{name: "logprobs", d: chat.Dialect{}, body: ask(`"logprobs":true,"top_logprobs":3`), has: []string{`"logprobs":true`, `"top_logprobs":3`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := tt.path
			if path == "" {
				path = "/"
			}
			req, err := gatetest.Decode(tt.d, path, tt.body)
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Fatalf("%v, want it to name %s", err, tt.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var whole any
			if err := json.Unmarshal([]byte(gatetest.Shown(req.Call)), &whole); err != nil {
				t.Fatal(err)
			}
			line := gatetest.JSON(whole)
			for _, part := range tt.has {
				if !strings.Contains(line, part) {
					t.Errorf("%s is not in %s", part, line)
				}
			}
			if tt.hasNot != "" && strings.Contains(line, tt.hasNot) {
				t.Errorf("%s is in %s", tt.hasNot, line)
			}
		})
	}
}

// TestLossyAnswers: details of an answer without a place in a dialect.
func TestLossyAnswers(t *testing.T) {
	refusal := schema.Reply{Message: []byte(`{"content":null,"refusal":"No."}`), FinishReason: "content_filter"}
	parts := schema.Reply{Message: []byte(`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`), FinishReason: "stop"}
	for _, tt := range []struct {
		name  string
		f     gatetest.Fixture
		reply *schema.Reply
		has   []string
	}{
		{"stop_sequence", gatetest.Anthropic(), &parts, []string{`"stop_reason":"end_turn"`, `"stop_sequence":null`}},
		{"a refusal in chat", gatetest.Chat(), &refusal, []string{`"refusal":"No."`, `"finish_reason":"content_filter"`}},
		{"a refusal in messages", gatetest.Anthropic(), &refusal, []string{`"text":"No."`, `"stop_reason":"refusal"`}},
		{"a refusal in responses", gatetest.Responses(), &refusal, []string{`"text":"No."`, `"reason":"content_filter"`}},
		{"a refusal in gemini", gatetest.Gemini(), &refusal, []string{`"text":"No."`, `"finishReason":"SAFETY"`}},
		{"a content in parts", gatetest.Chat(), &parts, []string{`"content":"ab"`}},
		{"logprobs stay with the trainer", gatetest.Chat(), &parts, []string{`"logprobs":null`}},
	} {
		body := tt.f.Body("hi", false)
		req, err := gatetest.Decode(tt.f.Dialect, tt.f.Path(body), body)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := req.Encoding.Encode(dialect.Meta{}, tt.reply)
		if err != nil {
			t.Fatal(err)
		}
		streamed, err := req.Encoding.Stream(dialect.Meta{}).Final(tt.reply)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range tt.has {
			if !bytes.Contains(whole, []byte(part)) {
				t.Errorf("%s: %s is not in %s", tt.name, part, whole)
			}
			if !bytes.Contains(streamed, []byte(part)) && part != `"logprobs":null` {
				t.Errorf("%s: %s is not in the stream %s", tt.name, part, streamed)
			}
		}
	}
}

// TestNestingIsBounded: the time for schemas in schemas, and documents in
// documents, does not grow with the square of the body.
func TestNestingIsBounded(t *testing.T) {
	const geminiPath = "/v1beta/models/m:generateContent"
	schemas := func(depth int) string {
		return strings.Repeat(`{"items":`, depth) + `{"type":"STRING"}` + strings.Repeat(`}`, depth)
	}
	withFormat := func(depth int) string {
		return `{"contents":[{"parts":[{"text":"x"}]}],"generationConfig":{"responseSchema":` + schemas(depth) + `}}`
	}
	withTool := func(depth int) string {
		return `{"contents":[{"parts":[{"text":"x"}]}],"tools":[{"functionDeclarations":[{"name":"f","parameters":` + schemas(depth) + `}]}]}`
	}
	documents := func(depth int) string {
		return `{"messages":[{"role":"user","content":[` + strings.Repeat(`{"type":"document","source":{"type":"content","content":[`, depth) + `{"type":"text","text":"x"}` + strings.Repeat(`]}}`, depth) + `]}]}`
	}
	for name, tt := range map[string]struct {
		d       dialect.Dialect
		path    string
		body    string
		refused string
	}{
		"format":     {gemini.Dialect{}, geminiPath, withFormat(20), ""},
		"formats":    {gemini.Dialect{}, geminiPath, withFormat(100), "more than 32 schemas"},
		"tool":       {gemini.Dialect{}, geminiPath, withTool(20), ""},
		"tools":      {gemini.Dialect{}, geminiPath, withTool(100), "more than 32 schemas"},
		"a document": {anthropic.Dialect{}, "/v1/messages", documents(1), ""},
		"documents":  {anthropic.Dialect{}, "/v1/messages", documents(2), "a document in a document"},
	} {
		_, err := gatetest.Decode(tt.d, tt.path, tt.body)
		if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s: %v, want %q", name, err, tt.refused)
		}
	}
}
