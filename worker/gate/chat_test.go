package gate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/worker/gate"
	"github.com/turngate/turngate/worker/gate/gatetest"
)

func TestMain(m *testing.M) {
	if parts := os.Getenv(partsVar); parts != "" {
		if err := serveApart(parts); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

func chatFixture() gatetest.Fixture {
	return gatetest.Fixture{
		Dialect: gate.Chat{}, Path: always("/v1/chat/completions"), KeepAlive: `"delta":{},"finish_reason":null`,
		Body: func(text string, stream bool) string {
			body, err := json.Marshal(map[string]any{"model": "policy", "stream": stream, "messages": []any{map[string]any{"role": "user", "content": text}}})
			if err != nil {
				panic(err) // strings always encode
			}
			return string(body)
		},
		Read: readChat,
	}
}

type chatMessage struct {
	Content   *string
	ToolCalls []struct {
		Index    *int
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

// readChat reads as strictly as the strictest client.
func readChat(t *testing.T, body []byte, stream bool) (text string, tools []string) {
	t.Helper()
	add := func(m chatMessage) {
		if m.Content != nil {
			text += *m.Content
		}
		for i, c := range m.ToolCalls {
			if stream && (c.Index == nil || *c.Index != i) {
				t.Errorf("tool call %d has no index", i)
			}
			tools = append(tools, c.Function.Name+" "+c.Function.Arguments)
		}
	}
	type answer struct {
		ID, Object, Model string
		Created           int64
		Choices           []struct {
			Message, Delta chatMessage
			FinishReason   *string `json:"finish_reason"`
		}
		Usage *struct {
			TotalTokens int `json:"total_tokens"`
		}
	}
	if !stream {
		var a answer
		if err := json.Unmarshal(body, &a); err != nil || len(a.Choices) != 1 || a.Usage == nil || a.ID == "" || a.Object != "chat.completion" {
			t.Fatalf("%v: %s", err, body)
		}
		add(a.Choices[0].Message)
		return text, tools
	}
	finished, used := false, false
	events := bytes.Split(bytes.TrimSuffix(body, []byte("\n\n")), []byte("\n\n"))
	for i, e := range events {
		data, ok := bytes.CutPrefix(e, []byte("data: "))
		if !ok || bytes.ContainsAny(data, "\n") {
			t.Fatalf("event %d is %q", i, e)
		}
		if string(data) == "[DONE]" {
			if i != len(events)-1 {
				t.Error("something follows [DONE]")
			}
			continue
		}
		var a answer
		if err := json.Unmarshal(data, &a); err != nil || a.ID == "" || a.Object != "chat.completion.chunk" {
			t.Fatalf("%v: %s", err, data)
		}
		for _, c := range a.Choices {
			add(c.Delta)
			finished = finished || c.FinishReason != nil
		}
		used = used || a.Usage != nil && a.Usage.TotalTokens > 0
	}
	if !finished || !used {
		t.Errorf("finish reason %v, usage %v in %s", finished, used, body)
	}
	return text, tools
}

func TestChatConformance(t *testing.T) { gatetest.Run(t, chatFixture()) }

func TestChatKeepsTheAgentsBytes(t *testing.T) {
	body := `{ "model":"m","stream":true , "temperature":0.70,"stream_options":{"include_usage":true},
		"messages":[ {"role":"user", "content":"a\u00e9"}, {"role":"tool","content":[]} ],"tools":[ {"x":1.0} ],"later":{"y":[1, 2]},"n":1}`
	req, err := decodeFresh(gate.Chat{}, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	c := req.Call
	if string(c.Messages[0]) != `{"role":"user", "content":"a\u00e9"}` || string(c.Tools) != `[ {"x":1.0} ]` || !c.Stream || c.Model != "m" ||
		string(c.Params["temperature"]) != "0.70" || string(c.Params["later"]) != `{"y":[1, 2]}` || len(c.Params) != 2 || len(c.Messages) != 2 {
		t.Fatalf("got %+v", c)
	}
}

func TestChatRefusesWhatItCannotDo(t *testing.T) {
	for name, body := range map[string]string{
		"n":                 `{"messages":[{}],"n":2}`,
		"no messages":       `{"model":"m"}`,
		"empty messages":    `{"messages":[]}`,
		"message is text":   `{"messages":["hi"]}`,
		"messages is text":  `{"messages":"hi"}`,
		"model is a number": `{"messages":[{}],"model":1}`,
		"twice the same":    `{"messages":[{}],"messages":[{}]}`,
	} {
		if _, err := decodeFresh(gate.Chat{}, []byte(body)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func FuzzChatDecode(f *testing.F) {
	f.Add([]byte(chatFixture().Body("hi", true)), []byte(chatFixture().Body("hi there", true)))
	f.Add([]byte(`{"messages":[{"role":"user"}],"n":1,"x":null}`), []byte(`{"messages":[{"role":"user"},{}],"x":1}`))
	f.Add([]byte(`{"a":1,"messages":[{}, {"b":[]} ],"c":2}`), []byte(`{"a":1,"messages":[{}, {"b":[]} , {}],"a":2}`))
	f.Add([]byte(`{"messages":[{}]}`), []byte(`{"messages":[{}]]}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, gate.Chat{}, first, second) })
}

func TestChatDecoderSeesEveryEdit(t *testing.T) {
	d := gate.Chat{}.Decoder(gate.NewMemory(0))
	for _, body := range []string{
		`{"model":"m","messages":[{"a":1},{"b":2}],"tools":[{"x":1}],"t":1}`,
		`{"model":"m","messages":[{"a":1},{"b":2},{"c":3}],"tools":[{"x":1}],"t":1}`,
		`{"model":"m","messages":[{"a":1},{"b":2},{"c":3}],"tools":[{"x":2}],"t":1}`,
		`{"model":"m","messages":[{"a":1},{"b":9},{"c":3}],"tools":[{"x":2}],"t":1}`,
		`{"model":"m","messages":[{"a":1}]}`,
		`{"model":"n","messages":[{"a":1}]}`,
		`{"model":"n","messages":[{"a":1}, {"a":1}],"stream":true}`,
	} {
		got, err := decodeWith(d, nil, []byte(body))
		want, wantErr := decodeFresh(gate.Chat{}, []byte(body))
		if err != nil || wantErr != nil || !reflect.DeepEqual(got.Call, want.Call) {
			t.Errorf("%s: %+v %v", body, got, err)
		}
	}
}

func FuzzChatEncode(f *testing.F) { fuzzEncode(f, chatFixture()) }
