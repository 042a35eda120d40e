package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Stream is Answer for an agent that reads the answer while it is generated:
// emit gets each piece, with its ids and log-probs, and may end it with an
// error. The reply is all of it. A stream that breaks off is a fault that is
// asked again.
func (u *Upstream) Stream(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
	more := map[string]string{"stream": "true", "stream_options": `{"include_usage":true}`}
	return u.answer(ctx, c, more, func(ctx context.Context, body []byte, into any) error {
		res, err := u.send(ctx, http.MethodPost, "/chat/completions", body)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			data, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
			if err != nil {
				return fail(http.StatusBadGateway, "the upstream's refusal broke off: %v", err)
			}
			return refused(res, data)
		}
		got, _ := into.(*completion)
		return readStream(io.LimitReader(res.Body, maxBody), got, emit)
	})
}

// readStream puts a stream of chunks
// (https://platform.openai.com/docs/api-reference/chat-streaming) together.
func readStream(body io.Reader, got *completion, emit func(*schema.Delta) error) error {
	var whole joined
	in := bufio.NewReader(body)
	for {
		line, err := in.ReadBytes('\n')
		data, isData := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data:"))
		data = bytes.TrimSpace(data)
		switch {
		case isData && string(data) == "[DONE]":
			return whole.finish(got)
		case isData:
			if err := whole.add(data, emit); err != nil {
				return err
			}
		case err != nil:
			return fail(http.StatusBadGateway, "the upstream's stream broke off: %v", err)
		}
	}
}

// joined is an answer as far as it was streamed.
type joined struct {
	completion
	choice             choice
	role               string
	content, reasoning strings.Builder
	hasContent         bool
	calls              []*joinedCall
	more               map[string]json.RawMessage // other members of the message
}

// joinedCall is a tool call as far as it was streamed.
type joinedCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// maxCalls bounds the tool calls of one answer.
const maxCalls = 1024

func (j *joined) add(data []byte, emit func(*schema.Delta) error) error {
	var chunk struct {
		completion
		Usage *schema.Usage `json:"usage"`
		Error *struct {
			Message string `json:"message"`
			Code    any    `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return fail(http.StatusBadGateway, "a chunk of the upstream cannot be read: %v", err)
	}
	if chunk.Error != nil {
		status, _ := chunk.Error.Code.(float64)
		return fail(int(status), "the upstream says in its stream: %s", schema.Clip(chunk.Error.Message, 2000))
	}
	if chunk.Usage != nil {
		j.Usage = *chunk.Usage
	}
	if len(chunk.PromptTokenIDs) > 0 { // of the first chunk
		j.PromptTokenIDs = chunk.PromptTokenIDs
	}
	if len(chunk.Choices) > 1 {
		return fail(http.StatusBadGateway, "a chunk of the upstream has %d choices, want 1", len(chunk.Choices))
	}
	for i := range chunk.Choices {
		if err := j.addChoice(&chunk.Choices[i], emit); err != nil {
			return err
		}
	}
	return nil
}

func (j *joined) addChoice(c *choice, emit func(*schema.Delta) error) error {
	if c.FinishReason != "" {
		j.choice.FinishReason = c.FinishReason
	}
	j.choice.TokenIDs = append(j.choice.TokenIDs, c.TokenIDs...)
	if c.Logprobs != nil {
		if j.choice.Logprobs == nil {
			j.choice.Logprobs = &logprobs{}
		}
		j.choice.Logprobs.Content = append(j.choice.Logprobs.Content, c.Logprobs.Content...)
	}
	said, err := j.addDelta(c.Delta)
	if err != nil {
		return fail(http.StatusBadGateway, "a delta of the upstream: %v", err)
	}
	if !said && len(c.TokenIDs) == 0 {
		return nil
	}
	delta := c.Delta
	if len(delta) == 0 {
		delta = json.RawMessage("{}")
	}
	return emit(&schema.Delta{V: schema.Version, Delta: delta, CompletionIDs: schema.PackTokenIDs(c.TokenIDs), Logprobs: c.packed()})
}

// addDelta joins a piece of the message. said: it has any.
func (j *joined) addDelta(raw json.RawMessage) (said bool, err error) {
	if len(raw) == 0 {
		return false, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return false, err
	}
	for name, value := range members {
		if string(value) == "null" {
			continue
		}
		said = true
		switch name {
		case "role":
			err = json.Unmarshal(value, &j.role)
		case "content":
			j.hasContent = true
			err = appendText(&j.content, value)
		case "reasoning_content", "reasoning": // engines have either name
			err = appendText(&j.reasoning, value)
		case "tool_calls":
			err = j.addCalls(value)
		default:
			if j.more == nil {
				j.more = map[string]json.RawMessage{}
			}
			j.more[name] = value
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
	}
	return said, nil
}

func appendText(to *strings.Builder, value json.RawMessage) error {
	var text string
	err := json.Unmarshal(value, &text)
	to.WriteString(text)
	return err
}

func (j *joined) addCalls(value json.RawMessage) error {
	var pieces []struct {
		Index int `json:"index"`
		joinedCall
	}
	if err := json.Unmarshal(value, &pieces); err != nil {
		return err
	}
	for _, p := range pieces {
		if p.Index < 0 || p.Index > len(j.calls) || p.Index >= maxCalls {
			return fmt.Errorf("index %d follows %d calls", p.Index, len(j.calls))
		}
		if p.Index == len(j.calls) {
			j.calls = append(j.calls, &joinedCall{Type: "function"})
		}
		c := j.calls[p.Index]
		if p.ID != "" {
			c.ID = p.ID
		}
		if p.Type != "" {
			c.Type = p.Type
		}
		c.Function.Name += p.Function.Name
		c.Function.Arguments += p.Function.Arguments
	}
	return nil
}

// finish is the answer as it would have come whole.
func (j *joined) finish(got *completion) error {
	if j.choice.FinishReason == "" {
		return fail(http.StatusBadGateway, "the upstream's stream ended without a finish_reason")
	}
	message := map[string]any{"role": "assistant", "content": nil}
	for name, value := range j.more {
		message[name] = value
	}
	if j.role != "" {
		message["role"] = j.role
	}
	if j.content.Len() > 0 || j.hasContent && len(j.calls) == 0 {
		message["content"] = j.content.String()
	}
	if j.reasoning.Len() > 0 {
		message["reasoning_content"] = j.reasoning.String()
	}
	if len(j.calls) > 0 {
		message["tool_calls"] = j.calls
	}
	var err error
	if j.choice.Message, err = json.Marshal(message); err != nil {
		return err
	}
	j.Choices = []choice{j.choice}
	*got = j.completion
	return nil
}
