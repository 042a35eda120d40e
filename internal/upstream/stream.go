package upstream

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// stream is Answer with an emit.
func (u *Upstream) stream(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
	more := map[string]string{"stream": "true", "stream_options": `{"include_usage":true}`}
	q := request{u: u, call: c, more: more}
	once := func(d *schema.Delta) error {
		q.started = true
		return emit(d)
	}
	return u.answer(ctx, &q, func(ctx context.Context, body []byte, into any) error {
		res, err := u.send(ctx, http.MethodPost, "/chat/completions", body)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			data, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
			if err != nil {
				return fail(http.StatusBadGateway, "its refusal broke off: %v", err)
			}
			return refused(res, data)
		}
		got, _ := into.(*completion)
		return readStream(io.LimitReader(res.Body, maxBody), got, once)
	})
}

// readStream joins a stream of chunks
// (https://platform.openai.com/docs/api-reference/chat-streaming).
func readStream(body io.Reader, got *completion, emit func(*schema.Delta) error) error {
	var whole joined
	var first []byte // the first line with text
	in := bufio.NewReader(body)
	for {
		line, err := in.ReadBytes('\n')
		if len(first) == 0 {
			first = bytes.TrimSpace(line)
		}
		data, isData := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data:"))
		data = bytes.TrimSpace(data)
		switch {
		case isData && string(data) == "[DONE]":
			return whole.finish(got)
		case isData && err == nil:
			if err := whole.add(data, emit); err != nil {
				return err
			}
		case errors.Is(err, io.EOF) && len(first) > 0 && strings.ContainsRune("<{[", rune(first[0])):
			return badAnswer("it is no stream of events; it begins with %q", schema.Clip(string(first), 200))
		case err != nil: // a last line without a line break is incomplete
			return fail(http.StatusBadGateway, "the stream broke off: %v", err)
		}
	}
}

// joined is the part of an answer that has arrived.
type joined struct {
	completion
	choice           choice
	role             string
	content, refusal strings.Builder
	reasoning        strings.Builder
	reasoningName    string // the engine's name for it
	hasContent       bool
	calls            joinedCalls
	more             map[string]json.RawMessage // other members of the message
}

func (j *joined) add(data []byte, emit func(*schema.Delta) error) error {
	var chunk struct { // it embeds nothing, so that errors have the names of fields alone
		Choices        []choice        `json:"choices"`
		PromptTokenIDs []int32         `json:"prompt_token_ids"`
		SGLExt         *sglExt         `json:"sglext"`
		Usage          *usage          `json:"usage"`
		Error          json.RawMessage `json:"error"`
		Object         string          `json:"object"`
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return badAnswer("a chunk cannot be read: %v", rawjson.Plain(err))
	}
	if len(chunk.Error) > 0 && string(chunk.Error) != "null" || chunk.Object == "error" {
		return refusedInStream(data)
	}
	if chunk.Usage != nil {
		j.Usage = *chunk.Usage
	}
	if len(chunk.PromptTokenIDs) > 0 { // in the first chunk
		j.PromptTokenIDs = chunk.PromptTokenIDs
	}
	if chunk.SGLExt != nil { // in the last chunk
		j.SGLExt = chunk.SGLExt
	}
	if len(chunk.Choices) > 1 {
		return badAnswer("choices: a chunk has %d, want 1", len(chunk.Choices))
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
	delta, err := j.addDelta(c.Delta)
	if err != nil {
		return badAnswer("delta: %v", err)
	}
	if delta == nil && len(c.TokenIDs) == 0 {
		return nil
	}
	if delta == nil {
		delta = json.RawMessage("{}")
	}
	return emit(&schema.Delta{V: schema.Version, Delta: delta, CompletionIDs: schema.PackTokenIDs(c.TokenIDs), Logprobs: c.packed()})
}

// addDelta joins a piece of the message and returns it in the form for the gate; nil:
// the piece has no member.
func (j *joined) addDelta(raw json.RawMessage) (piece json.RawMessage, err error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, rawjson.Plain(err)
	}
	for name, value := range members {
		if string(value) == "null" {
			continue
		}
		if piece == nil {
			piece = raw
		}
		switch name {
		case "role":
			err = json.Unmarshal(value, &j.role)
		case "content":
			j.hasContent = true
			err = appendText(&j.content, value)
		case reasoningContent:
			if len(value) > len(`""`) {
				j.reasoningName = name
			}
			err = appendText(&j.reasoning, value)
		case "reasoning": // engines use either name, or send the text under both
			if other := members[reasoningContent]; len(other) == 0 || string(other) == "null" || string(other) == `""` {
				j.reasoningName = cmp.Or(j.reasoningName, name)
				err = appendText(&j.reasoning, value)
			}
		case "refusal":
			err = appendText(&j.refusal, value)
		case "tool_calls":
			if members[name], err = j.calls.add(value); err == nil {
				piece = encoded(members)
			}
		default:
			if j.more == nil {
				j.more = map[string]json.RawMessage{}
			}
			j.more[name] = value
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, rawjson.Plain(err))
		}
	}
	return piece, nil
}

// reasoningContent is the older of the two names of the reasoning.
const reasoningContent = "reasoning_content"

func appendText(to *strings.Builder, value json.RawMessage) error {
	var text string
	err := json.Unmarshal(value, &text)
	to.WriteString(text)
	return err
}

// finish fills got with the answer in the form without a stream.
func (j *joined) finish(got *completion) error {
	if j.choice.FinishReason == "" {
		return badAnswer("finish_reason: the stream ended without one")
	}
	if j.choice.FinishReason == aborted {
		return errAborted()
	}
	message := map[string]any{"role": "assistant", "content": nil}
	for name, value := range j.more {
		message[name] = value
	}
	if j.role != "" {
		message["role"] = j.role
	}
	calls := j.calls.list()
	if j.content.Len() > 0 || j.hasContent && len(calls) == 0 {
		message["content"] = j.content.String()
	}
	if j.refusal.Len() > 0 {
		message["refusal"] = j.refusal.String()
	}
	if j.reasoning.Len() > 0 {
		message[j.reasoningName] = j.reasoning.String()
	}
	if len(calls) > 0 {
		message["tool_calls"] = calls
	}
	var err error
	if j.choice.Message, err = json.Marshal(message); err != nil {
		return err
	}
	j.Choices = []choice{j.choice}
	*got = j.completion
	return nil
}
