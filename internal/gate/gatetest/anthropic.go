package gatetest

import (
	"encoding/json"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect/anthropic"
)

// Anthropic is the fixture of package anthropic.
func Anthropic() Fixture {
	return Fixture{
		Dialect: anthropic.Dialect{}, Path: Always("/v1/messages"), KeepAlive: "event: ping",
		Body: func(text string, stream bool) string {
			return JSON(object{"model": "policy", "max_tokens": 100, "stream": stream, "messages": []any{object{"role": "user", "content": text}}})
		},
		Read: readMessages,
		Next: func(t *testing.T, request string, answer []byte) string {
			content := parsed(t, answer)["content"]
			results := []any{}
			for _, b := range list(content) {
				if b["type"] == "tool_use" {
					results = append(results, object{"type": "tool_result", "tool_use_id": b["id"], "content": "done"})
				}
			}
			return with(parsed(t, []byte(request)), "messages", object{"role": "assistant", "content": content}, object{"role": "user", "content": results})
		},
		CallID: `"type":"tool_use","id":"([^"]*)"`,
		Reasons: map[string]string{
			"stop": `"stop_reason":"end_turn"`, "length": `"stop_reason":"max_tokens"`, "tool_calls": `"stop_reason":"tool_use"`, "content_filter": `"stop_reason":"refusal"`,
		},
		Talk: Talk{
			Path: "/v1/messages",
			Head: `{"model":"m","max_tokens":%d,"messages":[`,
			Item: `{"role":"user","content":[{"type":"text","text":%q,"cache_control":{"type":"ephemeral"}}]}`,
			Tail: `],"system":"s","tools":[%s]}`,
			Tool: `{"name":%q,"input_schema":{}}`,
		},
	}
}

type anthropicBlock struct {
	Type, Text, Thinking, Signature, ID, Name string
	Input                                     json.RawMessage
}

// readMessages is as strict as Anthropic's own client.
func readMessages(t *testing.T, body []byte, stream bool) (text string, tools []string) {
	t.Helper()
	blocks := wholeBlocks
	if stream {
		blocks = streamedBlocks
	}
	for _, b := range blocks(t, body) {
		switch b.Type {
		case "text":
			text += b.Text
		case "thinking":
			if b.Signature == "" {
				t.Error("thinking without a signature")
			}
		case "tool_use":
			tools = append(tools, b.Name+" "+string(b.Input))
		}
	}
	return text, tools
}

// wholeBlocks reads the blocks of an answer that is not streamed.
func wholeBlocks(t *testing.T, body []byte) []anthropicBlock {
	t.Helper()
	var m struct {
		ID, Type, Role string
		Content        []anthropicBlock
		StopReason     string `json:"stop_reason"`
		Usage          *struct {
			Output int `json:"output_tokens"`
		}
	}
	if err := json.Unmarshal(body, &m); err != nil || m.Type != "message" || m.Role != "assistant" || m.StopReason == "" || m.Usage == nil {
		t.Fatalf("%v: %s", err, body)
	}
	return m.Content
}

// streamedBlocks puts the blocks of a stream together, and checks its order.
func streamedBlocks(t *testing.T, body []byte) (blocks []anthropicBlock) {
	t.Helper()
	var inputs []string
	begun, stopped, open := false, "", -1
	for _, e := range Events(string(body)) {
		var d struct {
			Type, Message string `json:"-"`
			Kind          string `json:"type"`
			Index         int
			ContentBlock  anthropicBlock `json:"content_block"`
			Delta         struct {
				Type, Text, Thinking, Signature string
				PartialJSON                     string `json:"partial_json"`
				StopReason                      string `json:"stop_reason"`
			}
			Usage struct {
				Output int `json:"output_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(e.Data), &d); err != nil || d.Kind != e.Kind {
			t.Fatalf("%v: %+v", err, e)
		}
		if d.Kind != "ping" && d.Kind != "message_start" && !begun {
			t.Errorf("%s before message_start", d.Kind)
		}
		switch d.Kind {
		case "message_start":
			begun = true
		case "content_block_start":
			if open >= 0 || d.Index != len(blocks) {
				t.Errorf("block %d begins while %d is open", d.Index, open)
			}
			open = d.Index
			blocks, inputs = append(blocks, d.ContentBlock), append(inputs, "")
		case "content_block_delta":
			if d.Index != open {
				t.Errorf("a delta of block %d while %d is open", d.Index, open)
			}
			blocks[open].Text += d.Delta.Text
			blocks[open].Thinking += d.Delta.Thinking
			blocks[open].Signature += d.Delta.Signature
			inputs[open] += d.Delta.PartialJSON
		case "content_block_stop":
			if in := inputs[open]; in != "" {
				blocks[open].Input = json.RawMessage(in)
			}
			open = -1
		case "message_delta":
			stopped = d.Delta.StopReason
		}
	}
	if stopped == "" || open >= 0 {
		t.Errorf("stop reason %q, block %d open in %s", stopped, open, body)
	}
	return blocks
}
