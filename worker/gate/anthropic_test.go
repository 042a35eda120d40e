package gate_test

import (
	"encoding/json"
	"testing"

	"github.com/turngate/turngate/worker/gate"
	"github.com/turngate/turngate/worker/gate/gatetest"
)

func messagesFixture() gatetest.Fixture {
	return gatetest.Fixture{
		Dialect: gate.Messages{}, Path: always("/v1/messages"), KeepAlive: "event: ping",
		Body: func(text string, stream bool) string {
			return jsonBody(obj{"model": "policy", "max_tokens": 100, "stream": stream, "messages": []any{obj{"role": "user", "content": text}}})
		},
		Read: readMessages,
	}
}

type anthropicBlock struct {
	Type, Text, Thinking, Signature, ID, Name string
	Input                                     json.RawMessage
}

// readMessages reads as strictly as Anthropic's own client.
func readMessages(t *testing.T, body []byte, stream bool) (text string, tools []string) {
	t.Helper()
	var blocks []anthropicBlock
	if !stream {
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
		blocks = m.Content
	} else {
		var inputs []string
		begun, stopped, open := false, "", -1
		for _, e := range events(string(body)) {
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
			if err := json.Unmarshal([]byte(e.data), &d); err != nil || d.Kind != e.kind {
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
	}
	for _, b := range blocks {
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

func TestMessagesConformance(t *testing.T) { gatetest.Run(t, messagesFixture()) }

func FuzzMessagesDecode(f *testing.F) {
	f.Add([]byte(messagesFixture().Body("hi", true)), []byte(messagesFixture().Body("hi there", true)))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{"name":"t","input_schema":{}}]}`),
		[]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"x"},{"type":"tool_use","id":"1","name":"t","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]}],"system":"s"}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, gate.Messages{}, first, second) })
}

func FuzzMessagesEncode(f *testing.F) { fuzzEncode(f, messagesFixture()) }
