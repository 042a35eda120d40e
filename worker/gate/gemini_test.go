package gate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
	"github.com/turngate/turngate/worker/gate/gatetest"
)

func geminiFixture() gatetest.Fixture {
	return gatetest.Fixture{
		Dialect: gate.Gemini{}, KeepAlive: `"parts":[{"text":""}]`,
		Path: func(body string) string {
			if strings.Contains(body, `"streamed":"yes"`) {
				return "/v1beta/models/policy:streamGenerateContent?alt=sse"
			}
			return "/v1beta/models/policy:generateContent"
		},
		Body: func(text string, stream bool) string {
			labels := obj{}
			if stream {
				labels["streamed"] = "yes"
			}
			return jsonBody(obj{"contents": []any{obj{"role": "user", "parts": []any{obj{"text": text}}}}, "labels": labels})
		},
		Read: readGemini,
	}
}

func readGemini(t *testing.T, body []byte, stream bool) (text string, tools []string) {
	t.Helper()
	chunks := []string{string(body)}
	if stream {
		chunks = nil
		for _, e := range events(string(body)) {
			chunks = append(chunks, e.data)
		}
	}
	reason, total := "", 0
	for _, c := range chunks {
		var o struct {
			Candidates []struct {
				Content struct {
					Role  string
					Parts []struct {
						Text         string
						Thought      bool
						FunctionCall *struct {
							ID, Name string
							Args     json.RawMessage
						}
					}
				}
				FinishReason string
			}
			UsageMetadata struct{ TotalTokenCount int }
		}
		if err := json.Unmarshal([]byte(c), &o); err != nil || len(o.Candidates) != 1 || o.Candidates[0].Content.Role != "model" {
			t.Fatalf("%v: %s", err, c)
		}
		for _, p := range o.Candidates[0].Content.Parts {
			if f := p.FunctionCall; f != nil {
				tools = append(tools, f.Name+" "+string(f.Args))
			} else if !p.Thought {
				text += p.Text
			}
		}
		reason += o.Candidates[0].FinishReason
		total += o.UsageMetadata.TotalTokenCount
	}
	if reason != "STOP" || total != 10 {
		t.Errorf("finish reason %q, %d tokens in %s", reason, total, body)
	}
	return text, tools
}

func TestGeminiConformance(t *testing.T) { gatetest.Run(t, geminiFixture()) }

func FuzzGeminiDecode(f *testing.F) {
	f.Add([]byte(geminiFixture().Body("hi", true)), []byte(geminiFixture().Body("hi there", true)))
	f.Add([]byte(`{"contents":[{"role":"user","parts":[{"text":"a"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}}]}]}`),
		[]byte(`{"contents":[{"role":"user","parts":[{"text":"a"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"x"}}}]}],"tools":[{"functionDeclarations":[{"name":"f","parameters":{"type":"OBJECT"}}]}]}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, gate.Gemini{}, first, second) })
}

func FuzzGeminiEncode(f *testing.F) { fuzzEncode(f, geminiFixture()) }

// TestGeminiStreamsAnArray when the client did not ask for events.
func TestGeminiStreamsAnArray(t *testing.T) {
	f := geminiFixture()
	f.Path = always("/v1beta/models/policy:streamGenerateContent")
	h := gatetest.New(t, f, &gatetest.Model{}, schema.GateOptions{})
	status, body := h.Ask(f.Body("hi", false))
	var chunks []json.RawMessage
	if err := json.Unmarshal(body, &chunks); status != 200 || err != nil || len(chunks) != 1 || !strings.Contains(string(chunks[0]), `"ok"`) {
		t.Errorf("%d %v: %s", status, err, body)
	}
}
