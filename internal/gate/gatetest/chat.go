package gatetest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect/chat"
)

// Chat is the fixture of package chat.
func Chat() Fixture {
	return Fixture{
		Dialect: chat.Dialect{}, Path: Always("/v1/chat/completions"), KeepAlive: `"delta":{},"finish_reason":null`,
		Body: func(text string, stream bool) string {
			request := object{"model": "policy", "stream": stream, "messages": []any{object{"role": "user", "content": text}}}
			if stream {
				request["stream_options"] = object{"include_usage": true}
			}
			return JSON(request)
		},
		Read: readChat,
		Next: func(t *testing.T, request string, answer []byte) string {
			message, _ := list(parsed(t, answer)["choices"])[0]["message"].(object)
			items := []any{message}
			for _, c := range list(message["tool_calls"]) {
				function, _ := c["function"].(object)
				function["arguments"] = rewritten(function["arguments"])
				items = append(items, object{"role": "tool", "tool_call_id": c["id"], "content": "done"})
			}
			return with(parsed(t, []byte(request)), "messages", items...)
		},
		CallID: `"id":"([^"]*)","type":"function"`,
		Reasons: map[string]string{
			"stop": `"finish_reason":"stop"`, "length": `"finish_reason":"length"`, "tool_calls": `"finish_reason":"tool_calls"`, "content_filter": `"finish_reason":"content_filter"`,
		},
		Talk: Talk{
			Path: "/v1/chat/completions",
			Head: `{"model":"m","temperature":%d,"messages":[`,
			Item: `{"role":"user","content":%q}`,
			Tail: `],"tools":[%s]}`,
			Tool: `{"type":"function","function":{"name":%q}}`,
		},
	}
}

type chatMessage struct {
	Content   *string
	ToolCalls []struct {
		Index    *int
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

// readChat is as strict as the strictest client.
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
			if stream && c.Function.Name == "" && len(tools) > 0 { // a continued call
				tools[len(tools)-1] += c.Function.Arguments
				continue
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
