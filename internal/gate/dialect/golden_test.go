package dialect_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/dialect/anthropic"
	"github.com/turngate/turngate/internal/gate/dialect/chat"
	"github.com/turngate/turngate/internal/gate/dialect/gemini"
	"github.com/turngate/turngate/internal/gate/dialect/responses"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/schema"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGoldenRequests decodes requests to the canonical call. A file with an
// agent's name has the third request that the agent made in a small task, with
// long texts replaced by their length; the other files have every feature of a
// dialect.
func TestGoldenRequests(t *testing.T) {
	files, err := filepath.Glob("testdata/requests/*.json")
	if err != nil {
		t.Fatal(err)
	}
	var names []string // of the requests that must be there
	fixtureOf := map[string]gatetest.Fixture{}
	for _, f := range gatetest.Fixtures() {
		names = append(names, f.Dialect.Name()+"-features")
		fixtureOf[f.Dialect.Name()+"-features"] = f
		for _, s := range agents.All() {
			if s.Dialect == f.Dialect.Name() {
				fixtureOf[s.Name] = f
			}
			if s.Dialect == f.Dialect.Name() && len(s.Packages) > 0 {
				names = append(names, s.Name)
			}
		}
	}
	for _, name := range names {
		if !slices.Contains(files, "testdata/requests/"+name+".json") {
			t.Errorf("testdata/requests/%s.json is missing", name)
		}
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			f, known := fixtureOf[name]
			if !known {
				t.Fatal("no agent and no dialect has this name")
			}
			path := f.Path(f.Body("x", true))
			req, err := gatetest.Decode(f.Dialect, path, string(body))
			if err != nil {
				t.Fatal(err)
			}
			got := gatetest.Shown(req.Call) + "\n"
			golden(t, strings.TrimSuffix(file, ".json")+".golden", got)
		})
	}
}

// TestRequestsThatCannotBeExpressedAreRefused by every dialect, with an error that names
// it.
func TestRequestsThatCannotBeExpressedAreRefused(t *testing.T) {
	const geminiPath = "/v1beta/models/policy:generateContent"
	for _, tt := range []struct {
		d          dialect.Dialect
		path, body string
		says       string
	}{
		{chat.Dialect{}, "/", `{"messages":[{}],"n":2}`, "n is 2"},
		{responses.Dialect{}, "/", `{"input":"x","tools":[{"type":"web_search"}]}`, "web_search"},
		{responses.Dialect{}, "/", `{"input":[{"type":"computer_call"}]}`, "computer_call"},
		{responses.Dialect{}, "/", `{"input":[{"type":"item_reference","id":"x"}]}`, "references"},
		{responses.Dialect{}, "/", `{"input":"x","background":true}`, "background"},
		{responses.Dialect{}, "/", `{"input":"x","conversation":"c"}`, "conversation"},
		{responses.Dialect{}, "/", `{"input":[{"role":"user","content":[{"type":"input_audio"}]}]}`, "input_audio"},
		{responses.Dialect{}, "/", `{"input":[{"role":"robot","content":"x"}]}`, "robot"},
		{responses.Dialect{}, "/", `{}`, "input"},
		{anthropic.Dialect{}, "/", `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"web_search_20250305","name":"web_search"}]}`, "web_search_20250305"},
		{anthropic.Dialect{}, "/", `{"messages":[{"role":"user","content":[{"type":"container_upload"}]}]}`, "container_upload"},
		{anthropic.Dialect{}, "/", `{"messages":[{"role":"tool","content":"x"}]}`, `"tool"`},
		{anthropic.Dialect{}, "/", `{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":[1]}]}]}`, "object"},
		{anthropic.Dialect{}, "/", `{"messages":[]}`, "at least one"},
		{gemini.Dialect{}, geminiPath, `{"contents":[{"parts":[{"text":"x"}]}],"generationConfig":{"candidateCount":2}}`, "candidateCount is 2"},
		{gemini.Dialect{}, geminiPath, `{"contents":[{"parts":[{"text":"x"}]}],"tools":[{"googleSearch":{}}]}`, "googleSearch"},
		{gemini.Dialect{}, geminiPath, `{"contents":[{"parts":[{"executableCode":{}}]}]}`, "executableCode"},
		{gemini.Dialect{}, geminiPath, `{"contents":[{"parts":[{"functionResponse":{"name":"f","response":{}}}]}]}`, `"f" has no call`},
		{gemini.Dialect{}, "/v1beta/models/policy:embedContent", `{"contents":[{"parts":[{"text":"x"}]}]}`, "embedContent"},
	} {
		if _, err := gatetest.Decode(tt.d, tt.path, tt.body); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s %s: %v, want it to name %q", tt.d.Name(), tt.body, err, tt.says)
		}
	}
}

// TestAMovingCacheControlBreaksNothing: Claude Code marks another message with
// every turn, and sends a string for content that was a list before.
func TestAMovingCacheControlBreaksNothing(t *testing.T) {
	d := history.NewReader(anthropic.Dialect{}, history.NewMemory(0), history.AsSent)
	first, err := gatetest.DecodeWith(d, gatetest.Posted("/"), []byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	second, err := gatetest.DecodeWith(d, gatetest.Posted("/"), []byte(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":[{"type":"text","text":"c","cache_control":{"type":"ephemeral"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if string(first.Call.Messages[0]) != string(second.Call.Messages[0]) {
		t.Errorf("%s and %s", first.Call.Messages[0], second.Call.Messages[0])
	}
}

// TestAContextOverflowIsSaidInEachDialect so that agents compact.
func TestAContextOverflowIsSaidInEachDialect(t *testing.T) {
	f := dialect.Refusal{Status: 400, Code: "context_length_exceeded", Message: "It is too long."}
	for d, says := range map[dialect.Dialect]string{
		chat.Dialect{}: `"code":"context_length_exceeded"`, responses.Dialect{}: `"code":"context_length_exceeded"`,
		anthropic.Dialect{}: "prompt is too long", gemini.Dialect{}: "input token count exceeds the maximum",
	} {
		if body := d.Fail(f); !json.Valid(body) || !strings.Contains(string(body), says) {
			t.Errorf("%s: %s", d.Name(), body)
		}
	}
}

// TestGoldenAnswers writes answers in every dialect: whole, as a stream of the
// whole, as a stream of its pieces, and the other events of a stream.
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
	}
	meta := dialect.Meta{ID: "alpha-1-1-1", Model: "policy", Created: 1_790_000_000}
	for _, f := range gatetest.Fixtures() {
		t.Run(f.Dialect.Name(), func(t *testing.T) {
			var out strings.Builder
			add := func(what string, b []byte, err error) {
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				fmt.Fprintf(&out, "== %s\n%s\n", what, bytes.TrimSuffix(b, []byte("\n")))
			}
			encoding := func() dialect.Encoding { // one for each answer, as in a session
				req, err := gatetest.Decode(f.Dialect, f.Talk.Path, f.Talk.Body([]string{"begin"}, []string{"bash", "read"}, 1))
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
			add("failure in a stream", encoding().Stream(meta).Fail(dialect.Refusal{Status: 500, Code: "server_error", Message: "The model server failed."}), nil)
			add("refusal", f.Dialect.Fail(dialect.Refusal{Status: 400, Code: schema.CodeContext, Message: "too long"}), nil)
			add("models", f.Dialect.Models("policy"), nil)
			got := out.String()
			if strings.Contains(got, "424242") || strings.Contains(got, "434343") {
				t.Error("token ids reach the agent")
			}
			golden(t, filepath.Join("testdata", "answers", f.Dialect.Name()+".golden"), got)
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

// TestAFieldOfAnotherFormIsNamed: the agent reads the field, the value and a valid form,
// and no type of this program.
func TestAFieldOfAnotherFormIsNamed(t *testing.T) {
	const path = "/v1beta/models/policy:generateContent"
	for _, tt := range []struct {
		d          dialect.Dialect
		path, body string
		says       string
	}{
		{gemini.Dialect{}, path, `{"contents":[{"parts":[{"text":"x"}]}],"tools":[{"functionDeclarations":[{"name":5}]}]}`, "name: a number is not valid: want a string"},
		{gemini.Dialect{}, path, `{"contents":[{"parts":[{"text":"x"}]}],"toolConfig":{"functionCallingConfig":{"allowedFunctionNames":[[]]}}}`, "functionCallingConfig.allowedFunctionNames[0]: an array is not valid: want a string"},
		{gemini.Dialect{}, path, `{"contents":[{"parts":[{"inlineData":{"data":true}}]}]}`, "inlineData: data: a boolean is not valid: want a string"},
		{gemini.Dialect{}, path, `{"contents":[{"parts":[{"fileData":"x"}]}]}`, "fileData: a string is not valid: want an object"},
		{anthropic.Dialect{}, "/", `{"messages":[{"role":"user","content":[{"type":"image","source":"x"}]}]}`, "source: a string is not valid: want an object"},
		{anthropic.Dialect{}, "/", `{"messages":[{"role":"user","content":"x"}],"tools":[{"name":{}}]}`, "name: an object is not valid: want a string"},
		{anthropic.Dialect{}, "/", `{"messages":[{"role":"user","content":"x"}],"tool_choice":"auto"}`, "a string is not valid: want an object"},
		{responses.Dialect{}, "/", `{"input":"x","text":{"format":"json"}}`, "a string is not valid: want an object"},
		{responses.Dialect{}, "/", `{"input":"x","tool_choice":[1]}`, "an array is not valid: want an object"},
		{responses.Dialect{}, "/", `{"input":"x","tools":[{"type":"function","name":7}]}`, "name: a number is not valid: want a string"},
		{responses.Dialect{}, "/", `{"input":"x","tools":[{"type":"custom","name":"f","format":"x"}]}`, "a string is not valid: want an object"},
	} {
		if _, err := gatetest.Decode(tt.d, tt.path, tt.body); err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s %s: %v, want it to say %q", tt.d.Name(), tt.body, err, tt.says)
		}
	}
}
