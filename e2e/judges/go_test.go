package judges

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

func parameters() map[string]any {
	return map[string]any{"type": "object", "properties": map[string]any{"command": map[string]any{"type": "string"}}, "required": []string{"command"}}
}

// ways runs a judge with whole answers, with streamed answers that the gate
// buffers, and with answers that it passes on piece by piece.
func ways(t *testing.T, judge func(t *testing.T, b *bench, stream bool)) {
	for name, mode := range map[string]string{"whole": schema.StreamBuffer, "stream": schema.StreamBuffer, "stream/pass": schema.StreamPass} {
		t.Run(name, func(t *testing.T) { judge(t, newBench(t, mode), strings.HasPrefix(name, "stream")) })
	}
}

func TestOpenAIGoChat(t *testing.T) {
	ways(t, func(t *testing.T, b *bench, stream bool) {
		client := openai.NewClient(option.WithBaseURL(b.url+"/v1"), option.WithAPIKey(b.key), option.WithMaxRetries(0))
		p := openai.ChatCompletionNewParams{
			Model: "policy",
			Messages: []openai.ChatCompletionMessageParamUnion{
				openai.SystemMessage("Be brief."),
				openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
					openai.TextContentPart("Look."), openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64," + png}),
				}),
			},
			Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "bash", Description: openai.String("Runs."), Parameters: parameters()})},
		}
		var turns []turn
		for range 2 {
			var c *openai.ChatCompletion
			if stream {
				p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
				s := client.Chat.Completions.NewStreaming(t.Context(), p)
				acc := openai.ChatCompletionAccumulator{}
				for s.Next() {
					if !acc.AddChunk(s.Current()) {
						t.Fatal("a chunk does not fit")
					}
				}
				harness.Must(t, s.Err())
				c = &acc.ChatCompletion
			} else {
				var err error
				c, err = client.Chat.Completions.New(t.Context(), p)
				harness.Must(t, err)
			}
			m := c.Choices[0].Message
			got := turn{Text: m.Content, Finish: c.Choices[0].FinishReason, Usage: [2]int64{c.Usage.PromptTokens, c.Usage.CompletionTokens}}
			p.Messages = append(p.Messages, m.ToParam())
			for _, call := range m.ToolCalls {
				got.Tools = append(got.Tools, [3]string{call.ID, call.Function.Name, call.Function.Arguments})
				p.Messages = append(p.Messages, openai.ToolMessage("out of "+call.ID, call.ID))
			}
			turns = append(turns, got)
		}
		check(t, turns, [2]string{"tool_calls", "stop"}, false)
		b.conversation(t, "chat")
		_, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "policy", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("refuse")}})
		var refused *openai.Error
		if !errors.As(err, &refused) || refused.StatusCode != 429 {
			t.Errorf("refused as %v", err)
		}
	})
}

func TestOpenAIGoResponses(t *testing.T) {
	ways(t, func(t *testing.T, b *bench, stream bool) {
		client := openai.NewClient(option.WithBaseURL(b.url+"/v1"), option.WithAPIKey(b.key), option.WithMaxRetries(0))
		raw := func(v any) responses.ResponseInputItemUnionParam {
			data, err := json.Marshal(v)
			harness.Must(t, err)
			return param.Override[responses.ResponseInputItemUnionParam](json.RawMessage(data))
		}
		type m = map[string]any
		input := responses.ResponseInputParam{raw(m{"role": "user", "content": []m{{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": "data:image/png;base64," + png}}})}
		tool := responses.ToolParamOfFunction("bash", parameters(), false)
		tool.OfFunction.Description = openai.String("Runs.")
		var turns []turn
		for range 2 {
			p := responses.ResponseNewParams{
				Model: "policy", Instructions: openai.String("Be brief."), Tools: []responses.ToolUnionParam{tool},
				Input: responses.ResponseNewParamsInputUnion{OfInputItemList: input},
			}
			var r responses.Response
			if stream {
				s := client.Responses.NewStreaming(t.Context(), p)
				for s.Next() {
					if e := s.Current(); e.Type == "response.completed" {
						r = e.Response
					}
				}
				harness.Must(t, s.Err())
			} else {
				whole, err := client.Responses.New(t.Context(), p)
				harness.Must(t, err)
				r = *whole
			}
			got := turn{Text: r.OutputText(), Finish: string(r.Status), Usage: [2]int64{r.Usage.InputTokens, r.Usage.OutputTokens}}
			var results responses.ResponseInputParam
			for _, o := range r.Output {
				input = append(input, raw(json.RawMessage(o.RawJSON())))
				switch o.Type {
				case "reasoning":
					got.Reasoning += o.Summary[0].Text
				case "function_call":
					call := o.AsFunctionCall()
					got.Tools = append(got.Tools, [3]string{call.CallID, call.Name, call.Arguments})
					results = append(results, raw(m{"type": "function_call_output", "call_id": call.CallID, "output": "out of " + call.CallID}))
				}
			}
			input = append(input, results...)
			turns = append(turns, got)
		}
		check(t, turns, [2]string{"completed", "completed"}, true)
		b.conversation(t, "responses")
	})
}

func TestAnthropicGo(t *testing.T) {
	ways(t, func(t *testing.T, b *bench, stream bool) {
		client := anthropic.NewClient(anthropicoption.WithBaseURL(b.url), anthropicoption.WithAPIKey(b.key), anthropicoption.WithMaxRetries(0))
		tool := anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{Properties: parameters()["properties"], Required: []string{"command"}}, "bash")
		tool.OfTool.Description = anthropic.String("Runs.")
		p := anthropic.MessageNewParams{
			Model: "policy", MaxTokens: 1000, System: []anthropic.TextBlockParam{{Text: "Be brief.", CacheControl: anthropic.NewCacheControlEphemeralParam()}}, Tools: []anthropic.ToolUnionParam{tool},
			Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Look."), anthropic.NewImageBlockBase64("image/png", png))},
		}
		var turns []turn
		for range 2 {
			var message anthropic.Message
			if stream {
				s := client.Messages.NewStreaming(t.Context(), p)
				for s.Next() {
					harness.Must(t, message.Accumulate(s.Current()))
				}
				harness.Must(t, s.Err())
			} else {
				whole, err := client.Messages.New(t.Context(), p)
				harness.Must(t, err)
				message = *whole
			}
			got := turn{Finish: string(message.StopReason), Usage: [2]int64{20, message.Usage.OutputTokens}}
			var results []anthropic.ContentBlockParamUnion
			for _, block := range message.Content {
				switch v := block.AsAny().(type) {
				case anthropic.TextBlock:
					got.Text += v.Text
				case anthropic.ThinkingBlock:
					got.Reasoning += v.Thinking
				case anthropic.ToolUseBlock:
					got.Tools = append(got.Tools, [3]string{v.ID, v.Name, string(v.Input)})
					results = append(results, anthropic.NewToolResultBlock(v.ID, "out of "+v.ID, false))
				}
			}
			p.Messages = append(p.Messages, message.ToParam())
			if results != nil {
				p.Messages = append(p.Messages, anthropic.NewUserMessage(results...))
			}
			turns = append(turns, got)
		}
		check(t, turns, [2]string{"tool_use", "end_turn"}, true)
		b.conversation(t, "messages")
		_, err := client.Messages.New(t.Context(), anthropic.MessageNewParams{Model: "policy", MaxTokens: 1, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("refuse"))}})
		var refused *anthropic.Error
		if !errors.As(err, &refused) || refused.StatusCode != 429 {
			t.Errorf("refused as %v", err)
		}
	})
}
