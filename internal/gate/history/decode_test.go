package history_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

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

// decodeTwo decodes two bodies in turns. The bodies that the decoder keeps must
// not change the other's call, and a returned call must not change when the
// memory of its body is used again.
func decodeTwo(t *testing.T, d dialect.Dialect, first, second []byte) {
	t.Helper()
	decoder := history.NewReader(d, history.NewMemory(0), history.AsSent)
	var calls []schema.Call
	var were []string
	for i, body := range [][]byte{first, second, second, first, second} {
		from := io.Reader(bytes.NewReader(body))
		if i%2 == 1 {
			from = iotest.HalfReader(from)
		}
		read, err := decoder.Read(from, len(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := decoder.Decode(gatetest.Posted("/"), read)
		fresh, freshErr := gatetest.Decode(d, "/", string(body))
		if (err == nil) != (freshErr == nil) {
			t.Fatalf("remembering: %v, fresh: %v", err, freshErr)
		}
		if err == nil {
			checkDecoded(t, got.Call, fresh.Call)
			calls, were = append(calls, got.Call), append(were, gatetest.Shown(got.Call))
		}
	}
	decoder.Scribble()
	for i, c := range calls {
		if now := gatetest.Shown(c); now != were[i] {
			t.Fatalf("call %d was %s and is now %s", i, were[i], now)
		}
	}
}

func checkDecoded(t *testing.T, got, fresh schema.Call) {
	t.Helper()
	if got.Replaced > fresh.Replaced {
		t.Fatalf("remembering: %d replaced characters, fresh: %d", got.Replaced, fresh.Replaced)
	}
	got.Replaced = fresh.Replaced // got counts the new part alone
	if !reflect.DeepEqual(got, fresh) {
		t.Fatalf("remembering: %s, fresh: %s", gatetest.Shown(got), gatetest.Shown(fresh))
	}
	for _, m := range append(append([]json.RawMessage(nil), got.Messages...), got.Tools) {
		if m != nil && !json.Valid(m) {
			t.Fatalf("%q is not JSON", m)
		}
	}
	for name, v := range got.Params {
		if !json.Valid(v) {
			t.Fatalf("%s: %q is not JSON", name, v)
		}
	}
}

func FuzzChatDecode(f *testing.F) {
	f.Add([]byte(gatetest.Chat().Body("hi", true)), []byte(gatetest.Chat().Body("hi there", true)))
	f.Add([]byte(`{"messages":[{"role":"user"}],"n":1,"x":null}`), []byte(`{"messages":[{"role":"user"},{}],"x":1}`))
	f.Add([]byte(`{"a":1,"messages":[{}, {"b":[]} ],"c":2}`), []byte(`{"a":1,"messages":[{}, {"b":[]} , {}],"a":2}`))
	f.Add([]byte(`{"messages":[{}]}`), []byte(`{"messages":[{}]]}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, chat.Dialect{}, first, second) })
}

func TestChatDecoderSeesEveryEdit(t *testing.T) {
	d := history.NewReader(chat.Dialect{}, history.NewMemory(0), history.AsSent)
	for _, body := range []string{
		`{"model":"m","messages":[{"a":1},{"b":2}],"tools":[{"x":1}],"t":1}`,
		`{"model":"m","messages":[{"a":1},{"b":2},{"c":3}],"tools":[{"x":1}],"t":1}`,
		`{"model":"m","messages":[{"a":1},{"b":2},{"c":3}],"tools":[{"x":2}],"t":1}`,
		`{"model":"m","messages":[{"a":1},{"b":9},{"c":3}],"tools":[{"x":2}],"t":1}`,
		`{"model":"m","messages":[{"a":1}]}`,
		`{"model":"n","messages":[{"a":1}]}`,
		`{"model":"n","messages":[{"a":1}, {"a":1}],"stream":true}`,
	} {
		got, err := gatetest.DecodeWith(d, gatetest.Posted("/"), []byte(body))
		want, wantErr := gatetest.Decode(chat.Dialect{}, "/", body)
		if err != nil || wantErr != nil || !reflect.DeepEqual(got.Call, want.Call) {
			t.Errorf("%s: %+v %v", body, got, err)
		}
	}
}

func FuzzResponsesDecode(f *testing.F) {
	f.Add([]byte(gatetest.Responses().Body("hi", true)), []byte(gatetest.Responses().Body("hi there", true)))
	f.Add([]byte(`{"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]}],"instructions":"s"}`),
		[]byte(`{"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"}],"instructions":"s"}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, responses.Dialect{}, first, second) })
}

func FuzzAnthropicDecode(f *testing.F) {
	f.Add([]byte(gatetest.Anthropic().Body("hi", true)), []byte(gatetest.Anthropic().Body("hi there", true)))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{"name":"t","input_schema":{}}]}`),
		[]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"x"},{"type":"tool_use","id":"1","name":"t","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]}],"system":"s"}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, anthropic.Dialect{}, first, second) })
}

func FuzzGeminiDecode(f *testing.F) {
	f.Add([]byte(gatetest.Gemini().Body("hi", true)), []byte(gatetest.Gemini().Body("hi there", true)))
	f.Add([]byte(`{"contents":[{"role":"user","parts":[{"text":"a"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}}]}]}`),
		[]byte(`{"contents":[{"role":"user","parts":[{"text":"a"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"x"}}}]}],"tools":[{"functionDeclarations":[{"name":"f","parameters":{"type":"OBJECT"}}]}]}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, gemini.Dialect{}, first, second) })
}

// TestRequestsOfAgentsInTurns decodes the golden requests of package dialect
// again and again, also with a change near the end.
func TestRequestsOfAgentsInTurns(t *testing.T) {
	files, err := filepath.Glob("../dialect/testdata/requests/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	of := map[string]string{} // dialects
	for _, s := range agents.All() {
		of[s.Name] = s.Dialect
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range gatetest.Fixtures() {
			if d := f.Dialect.Name(); d != of[name] && d+"-features" != name || d == "gemini" { // its model is in the path
				continue
			}
			cut := bytes.LastIndex(body, []byte(`"role"`))
			decodeTwo(t, f.Dialect, body, body)
			if cut < 0 { // the dialect calls its members otherwise
				continue
			}
			decodeTwo(t, f.Dialect, []byte(string(body[:cut])+`"role": "user", `+string(body[cut:])), body)
		}
	}
}

// TestTheModelsOwnWordsAreBounded: a conversation with one call of the model again and
// again has a bound, also if it grows from request to request.
func TestTheModelsOwnWordsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	r := history.NewReader(chat.Dialect{}, history.NewMemory(1<<30), func(m json.RawMessage) json.RawMessage {
		return append(slices.Clip(m), long...)
	})
	for n := 50; n <= 500; n += 50 {
		_, err := gatetest.DecodeWith(r, gatetest.Posted("/v1/chat/completions"), []byte(`{"messages":[`+strings.Repeat(`{"role":"user"},`, n)+`{"role":"user"}]}`))
		var large *history.SizeError
		if refused := n*len(long) > 2*history.BodyLimit; errors.As(err, &large) != refused || err != nil != refused {
			t.Errorf("%d messages: %v", n, err)
		}
	}
}
