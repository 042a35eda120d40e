package chat_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/gate/dialect/chat"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

func TestConformance(t *testing.T) { gatetest.Run(t, gatetest.Chat()) }

func FuzzChatEncode(f *testing.F) { gatetest.FuzzEncode(f, gatetest.Chat()) }

func TestChatKeepsTheAgentsBytes(t *testing.T) {
	body := `{ "model":"m","stream":true , "temperature":0.70,"stream_options":{"include_usage":true},
		"messages":[ {"role":"user", "content":"a\u00e9"}, {"role":"tool","content":[]} ],"tools":[ {"x":1.0} ],"later":{"y":[1, 2]},"n":1}`
	req, err := gatetest.Decode(chat.Dialect{}, "/", body)
	if err != nil {
		t.Fatal(err)
	}
	c := req.Call
	if string(c.Messages[0]) != `{"role":"user", "content":"a\u00e9"}` || string(c.Tools) != `[ {"x":1.0} ]` || !c.Stream || c.Model != "m" ||
		string(c.Params["temperature"]) != "0.70" || string(c.Params["later"]) != `{"y":[1, 2]}` || len(c.Params) != 2 || len(c.Messages) != 2 {
		t.Fatalf("got %+v", c)
	}
}

// TestUsageIsSentOnRequest: without include_usage clients read choices[0] of every
// chunk, as OpenAI's API lets them.
func TestUsageIsSentOnRequest(t *testing.T) {
	for options, want := range map[string]bool{
		``: false, `,"stream_options":null`: false, `,"stream_options":{}`: false, `,"stream_options":{"include_usage":false}`: false, `,"stream_options":{"include_usage":null}`: false,
		`,"stream_options":{"include_usage":true,"include_obfuscation":false}`: true,
	} {
		h := gatetest.New(t, gatetest.Chat(), &gatetest.Model{}, schema.GateOptions{})
		status, body := h.Ask(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]` + options + `}`)
		usage := 0
		for _, e := range gatetest.Events(string(body)) {
			var chunk struct {
				Choices []any
				Usage   *struct{}
			}
			if e.Data == "[DONE]" {
				continue
			}
			if err := json.Unmarshal([]byte(e.Data), &chunk); err != nil || (len(chunk.Choices) == 0) != (chunk.Usage != nil) {
				t.Fatalf("%s: %v in %s", options, err, e.Data)
			}
			if chunk.Usage != nil {
				usage++
			}
		}
		if status != http.StatusOK || (usage == 1) != want {
			t.Errorf("%s: %d, %d chunks with usage, want %v: %s", options, status, usage, want, body)
		}
	}
}

func TestChatRefusesUnsupportedRequests(t *testing.T) {
	for name, body := range map[string]string{
		"n":                 `{"messages":[{}],"n":2}`,
		"no messages":       `{"model":"m"}`,
		"empty messages":    `{"messages":[]}`,
		"message is text":   `{"messages":["hi"]}`,
		"messages is text":  `{"messages":"hi"}`,
		"stream_options":    `{"messages":[{}],"stream_options":7}`,
		"include_usage":     `{"messages":[{}],"stream_options":{"include_usage":1}}`,
		"model is a number": `{"messages":[{}],"model":1}`,
		"twice the same":    `{"messages":[{}],"messages":[{}]}`,
	} {
		if _, err := gatetest.Decode(chat.Dialect{}, "/", body); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
