package gate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGoldenRequests decodes requests to the canonical call. Those that are
// named for an agent are the third request that it made in a small task, long
// texts replaced by their length; the others have every feature of a dialect.
func TestGoldenRequests(t *testing.T) {
	dialects := map[string]struct {
		d    gate.Dialect
		path string
	}{
		"opencode": {gate.Chat{}, "/v1/chat/completions"}, "pi": {gate.Chat{}, "/v1/chat/completions"}, "qwen-code": {gate.Chat{}, "/v1/chat/completions"},
		"kilo": {gate.Chat{}, "/v1/chat/completions"}, "copilot": {gate.Chat{}, "/v1/chat/completions"}, "droid": {gate.Chat{}, "/v1/chat/completions"},
		"cline": {gate.Chat{}, "/v1/chat/completions"}, "kimi": {gate.Chat{}, "/v1/chat/completions"}, "continue": {gate.Chat{}, "/v1/chat/completions"},
		"grok": {gate.Chat{}, "/v1/chat/completions"}, "grok-cli": {gate.Chat{}, "/v1/chat/completions"}, "codex": {gate.Responses{}, "/v1/responses"}, "claude-code": {gate.Messages{}, "/v1/messages"}, "gemini-cli": {gate.Gemini{}, "/v1beta/models/policy:streamGenerateContent?alt=sse"},
		"chat-features": {gate.Chat{}, "/v1/chat/completions"}, "responses-features": {gate.Responses{}, "/v1/responses"},
		"messages-features": {gate.Messages{}, "/v1/messages"}, "gemini-features": {gate.Gemini{}, "/v1beta/models/policy:streamGenerateContent?alt=sse"},
	}
	files, err := filepath.Glob("testdata/requests/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(dialects) {
		t.Errorf("%d requests, want %d", len(files), len(dialects))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			req, err := decode(t, dialects[name].d, dialects[name].path, string(body))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(dialects[name].path, ":") { // Gemini's has its model in the path
				cut := strings.LastIndex(string(body), `"role"`)
				decodeTwo(t, dialects[name].d, body, body)
				decodeTwo(t, dialects[name].d, []byte(string(body[:cut])+`"role": "user", `+string(body[cut:])), body)
			}
			got := shown(req.Call) + "\n"
			golden(t, strings.TrimSuffix(file, ".json")+".golden", got)
		})
	}
}

// TestWhatCannotBeExpressedIsRefused by every dialect, in words that name it.
func TestWhatCannotBeExpressedIsRefused(t *testing.T) {
	const gemini = "/v1beta/models/policy:generateContent"
	for _, tt := range []struct {
		d          gate.Dialect
		path, body string
		says       string
	}{
		{gate.Chat{}, "/", `{"messages":[{}],"n":2}`, "n is 2"},
		{gate.Responses{}, "/", `{"input":"x","tools":[{"type":"web_search"}]}`, "web_search"},
		{gate.Responses{}, "/", `{"input":[{"type":"computer_call"}]}`, "computer_call"},
		{gate.Responses{}, "/", `{"input":[{"type":"item_reference","id":"x"}]}`, "references"},
		{gate.Responses{}, "/", `{"input":"x","background":true}`, "background"},
		{gate.Responses{}, "/", `{"input":"x","conversation":"c"}`, "conversation"},
		{gate.Responses{}, "/", `{"input":[{"role":"user","content":[{"type":"input_audio"}]}]}`, "input_audio"},
		{gate.Responses{}, "/", `{"input":[{"role":"robot","content":"x"}]}`, "robot"},
		{gate.Responses{}, "/", `{}`, "input"},
		{gate.Messages{}, "/", `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"web_search_20250305","name":"web_search"}]}`, "web_search_20250305"},
		{gate.Messages{}, "/", `{"messages":[{"role":"user","content":[{"type":"container_upload"}]}]}`, "container_upload"},
		{gate.Messages{}, "/", `{"messages":[{"role":"tool","content":"x"}]}`, `"tool"`},
		{gate.Messages{}, "/", `{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":[1]}]}]}`, "object"},
		{gate.Messages{}, "/", `{"messages":[]}`, "at least one"},
		{gate.Gemini{}, gemini, `{"contents":[{"parts":[{"text":"x"}]}],"generationConfig":{"candidateCount":2}}`, "candidateCount is 2"},
		{gate.Gemini{}, gemini, `{"contents":[{"parts":[{"text":"x"}]}],"tools":[{"googleSearch":{}}]}`, "googleSearch"},
		{gate.Gemini{}, gemini, `{"contents":[{"parts":[{"executableCode":{}}]}]}`, "executableCode"},
		{gate.Gemini{}, gemini, `{"contents":[{"parts":[{"functionResponse":{"name":"f","response":{}}}]}]}`, `"f" has no call`},
		{gate.Gemini{}, "/v1beta/models/policy:embedContent", `{"contents":[{"parts":[{"text":"x"}]}]}`, "embedContent"},
	} {
		if _, err := decode(t, tt.d, tt.path, tt.body); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s %s: %v, want it to name %q", tt.d.Name(), tt.body, err, tt.says)
		}
	}
}

// TestAMovingCacheControlBreaksNothing: Claude Code marks another message with
// every turn, and sends as a string what was a list before.
func TestAMovingCacheControlBreaksNothing(t *testing.T) {
	d := gate.Messages{}.Decoder(gate.NewMemory(0))
	first, err := decodeWith(d, nil, []byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	second, err := decodeWith(d, nil, []byte(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":[{"type":"text","text":"c","cache_control":{"type":"ephemeral"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if string(first.Call.Messages[0]) != string(second.Call.Messages[0]) {
		t.Errorf("%s and %s", first.Call.Messages[0], second.Call.Messages[0])
	}
}

// TestAContextOverflowIsSaidInEachDialect so that agents compact.
func TestAContextOverflowIsSaidInEachDialect(t *testing.T) {
	f := gate.Refusal{Status: 400, Code: "context_length_exceeded", Message: "It is too long."}
	for d, says := range map[gate.Dialect]string{
		gate.Chat{}: `"code":"context_length_exceeded"`, gate.Responses{}: `"code":"context_length_exceeded"`,
		gate.Messages{}: "prompt is too long", gate.Gemini{}: "input token count exceeds the maximum",
	} {
		if body := d.Fail(f); !json.Valid(body) || !strings.Contains(string(body), says) {
			t.Errorf("%s: %s", d.Name(), body)
		}
	}
}

// TestGoldenAnswers writes answers in every dialect: whole, as a stream of the
// whole, as a stream of its pieces, and what a stream has beside.
func TestGoldenAnswers(t *testing.T) {
	calls := schema.Reply{
		Message: []byte(`{"role":"assistant","content":"I look. \u00e9\n","reasoning_content":"Where am I?","tool_calls":[` +
			`{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\"command\":\"pwd\"}"}},` +
			`{"id":"call_2","type":"function","function":{"name":"read","arguments":"{\"path\": \"a\"}"}}]}`),
		FinishReason: "tool_calls", Usage: schema.Usage{PromptTokens: 12, CompletionTokens: 34},
		PromptIDs: schema.PackTokenIDs([]int32{424242}), CompletionIDs: schema.PackTokenIDs([]int32{434343}),
	}
	cut := schema.Reply{Message: []byte(`{"role":"assistant","content":"Too lo"}`), FinishReason: "length", Usage: schema.Usage{PromptTokens: 1, CompletionTokens: 2}}
	pieces := []string{
		`{"role":"assistant","content":""}`, `{"reasoning_content":"Where am I?"}`, `{"content":"I look. "}`, `{"content":"\u00e9\n"}`,
		`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\"command\":"}}]}`,
		`{"tool_calls":[{"index":0,"function":{"arguments":"\"pwd\"}"}}]}`,
		`{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"read","arguments":"{\"path\": \"a\"}"}}]}`,
	}
	meta := gate.Meta{ID: "alpha-1-1-1", Model: "policy", Created: 1_790_000_000}
	for _, s := range spokenDialects() {
		t.Run(s.dialect.Name(), func(t *testing.T) {
			h := history{texts: []string{"begin"}, tools: []string{"bash", "read"}, param: 1}
			var out strings.Builder
			add := func(what string, b []byte, err error) {
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				fmt.Fprintf(&out, "== %s\n%s\n", what, bytes.TrimSuffix(b, []byte("\n")))
			}
			encoding := func() gate.Encoding { // one for each answer, as in a session
				req, err := decode(t, s.dialect, s.path, h.body(s))
				if err != nil {
					t.Fatal(err)
				}
				return req.Encoding
			}
			whole, err := encoding().Encode(meta, &calls)
			add("whole", whole, err)
			whole, err = encoding().Encode(meta, &cut)
			add("whole, cut off by its length", whole, err)
			stream := encoding().Stream(meta)
			final, err := stream.Final(&calls)
			add("streamed as one, "+stream.ContentType(), final, err)
			stream = encoding().Stream(meta)
			add("a sign of life", stream.KeepAlive(), nil)
			for _, p := range pieces {
				b, err := stream.Delta(&schema.Delta{V: 1, Delta: []byte(p)})
				add("piece "+p, b, err)
			}
			final, err = stream.Final(&calls)
			add("end of the pieces", final, err)
			add("failure in a stream", encoding().Stream(meta).Fail(gate.Refusal{Status: 500, Code: "server_error", Message: "The model server failed."}), nil)
			add("refusal", s.dialect.Fail(gate.Refusal{Status: 400, Code: schema.CodeContext, Message: "too long"}), nil)
			add("models", s.dialect.Models("policy"), nil)
			got := out.String()
			if strings.Contains(got, "424242") || strings.Contains(got, "434343") {
				t.Error("token ids reach the agent")
			}
			golden(t, filepath.Join("testdata", "answers", s.dialect.Name()+".golden"), got)
		})
	}
}

// golden compares a text with a file, or writes it with -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what it was; run with -update and look at the difference\n%s", file, got)
	}
}
