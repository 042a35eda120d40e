package upstream

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/rawjson"
)

// Finding is the result of one check of a probe. Err is nil if the check
// passed.
type Finding struct {
	What string
	OK   string // the observed behaviour
	Err  error
	Todo string // the change that makes the check pass
}

// Probe checks everything that training needs of the upstream, with a few short
// completions.
func (u *Upstream) Probe(ctx context.Context) []Finding {
	model, length, err := u.model(ctx)
	served := "serves " + model
	if length > 0 {
		served += fmt.Sprintf(", %d tokens of context", length)
	}
	out := []Finding{{What: "upstream", OK: served, Err: err, Todo: "check the URL, the key in TURNGATE_UPSTREAM_KEY, and --model"}}
	if err != nil {
		return out
	}
	p := prober{u: u, model: model}
	return append(out, p.tokens(ctx), p.processed(ctx), p.tools(ctx), p.streaming(ctx))
}

type prober struct {
	u     *Upstream
	model string
}

// ask completes a short prompt with further parameters.
func (p *prober) ask(ctx context.Context, more map[string]any, into any) error {
	body, err := json.Marshal(p.request(more))
	if err != nil {
		return err
	}
	return p.u.post(ctx, body, into)
}

func (p *prober) request(more map[string]any) map[string]any {
	q := map[string]any{
		"model": p.model, "max_tokens": 16, "temperature": 1.0,
		"messages": []map[string]string{{"role": "user", "content": "Count from one to five, in words."}},
	}
	for name, value := range more {
		q[name] = value
	}
	return q
}

// tokens checks that ids and log-probs arrive and match each other.
func (p *prober) tokens(ctx context.Context) Finding {
	f := Finding{What: "token ids", Todo: "use an engine that knows return_token_ids: vLLM 0.11 or later, SGLang of July 2026 or later"}
	var got completion
	if f.Err = p.ask(ctx, map[string]any{"logprobs": true, "return_token_ids": true}, &got); f.Err != nil {
		return f
	}
	if len(got.Choices) == 1 {
		got.moveIDs(&got.Choices[0])
	}
	switch {
	case len(got.Choices) != 1:
		f.Err = fmt.Errorf("%d choices came", len(got.Choices))
	case len(got.PromptTokenIDs) == 0:
		f.Err = errors.New("no prompt_token_ids came")
	case len(got.Choices[0].TokenIDs) == 0:
		f.Err = errors.New("no token_ids came with the choice")
	case got.Choices[0].Logprobs == nil || len(got.Choices[0].Logprobs.Content) != len(got.Choices[0].TokenIDs):
		f.Err = errors.New("there is not one log-prob for each token id")
	case got.Usage.CompletionTokens != int64(len(got.Choices[0].TokenIDs)):
		f.Err = fmt.Errorf("usage counts %d completion tokens, %d ids came", got.Usage.CompletionTokens, len(got.Choices[0].TokenIDs))
	}
	f.OK = fmt.Sprintf("%d of the prompt, %d of the completion, a log-prob each", len(got.PromptTokenIDs), got.Usage.CompletionTokens)
	return f
}

// processed checks that the log-probs are of the distribution that is sampled
// from: the gap between two likely first tokens must grow as the temperature
// falls.
func (p *prober) processed(ctx context.Context) Finding {
	f := Finding{What: "log-probs", OK: "of the distribution that is sampled", Todo: "start vLLM with --logprobs-mode processed_logprobs"}
	var gaps [2]float64
	for i, temperature := range []float64{1, 0.5} {
		if gaps[i], f.Err = p.gap(ctx, temperature); f.Err != nil {
			return f
		}
	}
	if ratio := gaps[1] / gaps[0]; ratio < 1.7 || ratio > 2.3 || math.IsNaN(ratio) {
		f.Err = fmt.Errorf("the gap between the likeliest token and the third is %.3f at temperature 1 and %.3f at 0.5, where it should double: they are raw, which breaks importance ratios", gaps[0], gaps[1])
	}
	return f
}

// gap returns the difference of the log-probs of the likeliest first token and
// the third.
func (p *prober) gap(ctx context.Context, temperature float64) (float64, error) {
	var got struct {
		Choices []struct {
			Logprobs struct {
				Content []struct {
					Top []struct{ Logprob float64 } `json:"top_logprobs"`
				}
			}
		}
	}
	if err := p.ask(ctx, map[string]any{"logprobs": true, "top_logprobs": 4, "temperature": temperature, "max_tokens": 1}, &got); err != nil {
		return 0, err
	}
	if len(got.Choices) != 1 || len(got.Choices[0].Logprobs.Content) == 0 {
		return 0, errors.New("no log-probs came for a token")
	}
	// vLLM puts the sampled token before the likeliest ones and drops the last
	// of them.
	var all []float64
	for _, t := range got.Choices[0].Logprobs.Content[0].Top {
		all = append(all, t.Logprob)
	}
	slices.SortFunc(all, func(a, b float64) int { return cmp.Compare(b, a) })
	if len(all) < 3 {
		return 0, fmt.Errorf("%d top_logprobs came for a token, 4 were asked for", len(all))
	}
	return all[0] - all[2], nil
}

// tools checks that a tool call arrives as one. An untrained model may need
// several tries.
func (p *prober) tools(ctx context.Context) Finding {
	f := Finding{What: "tool calls", OK: "come as tool_calls", Todo: "start vLLM with --enable-auto-tool-choice and the --tool-call-parser of the model"}
	tool := map[string]any{"type": "function", "function": map[string]any{
		"name": "count_to", "description": "Counts from one to a number.",
		"parameters": map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}}, "required": []string{"n"}},
	}}
	type answer struct {
		Choices []struct {
			Message struct {
				ToolCalls []toolCall `json:"tool_calls"`
			}
		}
	}
	// Agents send auto, which some upstreams refuse.
	if f.Err = p.ask(ctx, map[string]any{"tools": []any{tool}, "tool_choice": "auto", "max_tokens": 1}, &answer{}); f.Err != nil {
		return f
	}
	for try := range 5 {
		var got answer
		if f.Err = p.ask(ctx, map[string]any{"tools": []any{tool}, "tool_choice": "required", "max_tokens": 200, "seed": try + 1}, &got); f.Err != nil {
			return f
		}
		switch {
		case len(got.Choices) != 1 || len(got.Choices[0].Message.ToolCalls) == 0:
			f.Err = errors.New("a call was required and none came")
			continue
		case got.Choices[0].Message.ToolCalls[0].Function.Name != "count_to" || got.Choices[0].Message.ToolCalls[0].Function.Arguments == "":
			f.Err = fmt.Errorf("the call is %+v", got.Choices[0].Message.ToolCalls[0])
		}
		return f
	}
	return f
}

type toolCall struct {
	Function struct{ Name, Arguments string }
}

// streaming checks that a stream has the token ids.
func (p *prober) streaming(ctx context.Context) Finding {
	f := Finding{What: "streaming", Todo: "answers that are not streamed work all the same: turngate streams to the agent itself"}
	body, err := json.Marshal(p.request(map[string]any{"stream": true, "logprobs": true, "return_token_ids": true, "stream_options": map[string]bool{"include_usage": true}}))
	if err != nil {
		f.Err = err
		return f
	}
	res, err := p.u.send(ctx, http.MethodPost, "/chat/completions", body)
	if err != nil {
		f.Err = err
		return f
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(io.LimitReader(res.Body, 2000))
		f.Err = refused(res, data)
		return f
	}
	prompt, ids, chunks, done := 0, 0, 0, false
	for lines := bufio.NewScanner(io.LimitReader(res.Body, maxBody)); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			break
		}
		var chunk completion
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			f.Err = fmt.Errorf("a chunk cannot be read: %w", rawjson.Plain(err))
			return f
		}
		chunks++
		prompt += len(chunk.PromptTokenIDs)
		for _, c := range chunk.Choices {
			ids += len(c.TokenIDs)
		}
		if e := chunk.SGLExt; e != nil && len(e.OutputIDs) == 1 {
			prompt, ids = prompt+len(e.InputIDs), ids+len(e.OutputIDs[0])
		}
	}
	switch {
	case !done:
		f.Err = errors.New("the stream did not end with [DONE]")
	case prompt == 0 || ids == 0:
		f.Err = fmt.Errorf("%d chunks came with %d ids of the prompt and %d of the completion", chunks, prompt, ids)
	}
	f.OK = fmt.Sprintf("%d chunks, with ids", chunks)
	return f
}
