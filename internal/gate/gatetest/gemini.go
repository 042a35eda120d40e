package gatetest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect/gemini"
)

// Gemini is the fixture of package gemini.
func Gemini() Fixture {
	return Fixture{
		Dialect: gemini.Dialect{}, KeepAlive: `"parts":[{"text":""}]`,
		Path: func(body string) string {
			if strings.Contains(body, `"streamed":"yes"`) {
				return "/v1beta/models/policy:streamGenerateContent?alt=sse"
			}
			return "/v1beta/models/policy:generateContent"
		},
		Body: func(text string, stream bool) string {
			labels := object{}
			if stream {
				labels["streamed"] = "yes"
			}
			return JSON(object{"contents": []any{object{"role": "user", "parts": []any{object{"text": text}}}}, "labels": labels})
		},
		Read: readGemini,
		Next: func(t *testing.T, request string, answer []byte) string {
			content, _ := list(parsed(t, answer)["candidates"])[0]["content"].(object)
			results := []any{}
			for _, p := range list(content["parts"]) {
				if c, ok := p["functionCall"].(object); ok {
					results = append(results, object{"functionResponse": object{"id": c["id"], "name": c["name"], "response": object{"output": "done"}}})
				}
			}
			return with(parsed(t, []byte(request)), "contents", content, object{"role": "user", "parts": results})
		},
		CallID:  `"functionCall":\{"id":"([^"]*)"`,
		Reasons: map[string]string{"stop": `"finishReason":"STOP"`, "length": `"finishReason":"MAX_TOKENS"`, "tool_calls": `"finishReason":"STOP"`, "content_filter": `"finishReason":"SAFETY"`},
		Talk: Talk{
			Path: "/v1beta/models/m:generateContent",
			Head: `{"generationConfig":{"seed":%d},"contents":[`,
			Item: `{"role":"user","parts":[{"text":%q}]}`,
			Tail: `],"tools":[{"functionDeclarations":[%s]}]}`,
			Tool: `{"name":%q}`,
		},
	}
}

func readGemini(t *testing.T, body []byte, stream bool) (text string, tools []string) {
	t.Helper()
	chunks := []string{string(body)}
	if stream {
		chunks = nil
		for _, e := range Events(string(body)) {
			chunks = append(chunks, e.Data)
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
