package trainer

import (
	"encoding/json"
	"fmt"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Message is a message of OpenAI chat, without the parts that few policies use:
// images, audio and names are left out by ParseMessage.
type Message struct {
	Role       string    // system, developer, user, assistant or tool
	Content    string    // its text; of several text parts: all of them, joined
	Reasoning  string    // reasoning_content, of an assistant
	ToolCalls  []ToolUse // of an assistant
	ToolCallID string    // of a tool: the ToolUse that it answers
}

// ToolUse is a call of a tool by the model.
type ToolUse struct {
	ID        string
	Name      string
	Arguments string // a JSON object as text, as the model wrote it
}

type wireMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content"`
	Reasoning  string     `json:"reasoning_content,omitempty"`
	ToolCalls  []wireTool `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type wireTool struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// ParseMessage reads one of a call's messages. It fails only for a message that
// is not in OpenAI's form.
func ParseMessage(raw json.RawMessage) (Message, error) {
	var w struct { // it embeds nothing, so that errors have the names of fields alone
		Role       string          `json:"role"`
		Content    json.RawMessage `json:"content"`
		Reasoning  string          `json:"reasoning_content"`
		ToolCalls  []wireTool      `json:"tool_calls"`
		ToolCallID string          `json:"tool_call_id"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return Message{}, fmt.Errorf("read a message: %w", rawjson.Plain(err))
	}
	m := Message{Role: w.Role, Reasoning: w.Reasoning, ToolCallID: w.ToolCallID}
	for _, t := range w.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, ToolUse{t.ID, t.Function.Name, t.Function.Arguments})
	}
	if len(w.Content) == 0 || w.Content[0] != '[' {
		if len(w.Content) > 0 && json.Unmarshal(w.Content, &m.Content) != nil {
			return m, &schema.InvalidError{Field: "content", Value: schema.Clip(string(w.Content), 80), Want: "want a text, a list of parts or null"}
		}
		return m, nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(w.Content, &parts); err != nil {
		return m, fmt.Errorf("read the parts of a message: %w", rawjson.Plain(err))
	}
	for _, p := range parts {
		m.Content += p.Text
	}
	return m, nil
}

// Sample is the training data of one generation.
type Sample struct {
	PromptIDs     []int32
	CompletionIDs []int32
	Logprobs      []float32 // one per completion id, or none
	Version       string    // policy version that generated the completion ids
}

// NewReply returns the reply with an assistant's message and its training data.
// Its finish reason is tool_calls or stop; change it to length for an answer
// that was cut off.
func NewReply(m Message, s Sample) (*schema.Reply, error) {
	w := wireMessage{Role: "assistant", Reasoning: m.Reasoning}
	if m.Content != "" || len(m.ToolCalls) == 0 {
		w.Content = m.Content
	}
	r := &schema.Reply{
		FinishReason: "stop", Usage: schema.Usage{PromptTokens: int64(len(s.PromptIDs)), CompletionTokens: int64(len(s.CompletionIDs))},
		PromptIDs: schema.PackTokenIDs(s.PromptIDs), CompletionIDs: schema.PackTokenIDs(s.CompletionIDs), Logprobs: schema.PackLogprobs(s.Logprobs),
	}
	for _, t := range m.ToolCalls {
		use := wireTool{ID: t.ID, Type: "function"}
		use.Function.Name, use.Function.Arguments = t.Name, t.Arguments
		w.ToolCalls, r.FinishReason = append(w.ToolCalls, use), "tool_calls"
	}
	if s.Version != "" {
		r.Versions = []schema.VersionSpan{{Version: s.Version, Start: 0, End: len(s.CompletionIDs)}}
	}
	var err error
	if r.Message, err = json.Marshal(w); err != nil {
		return nil, fmt.Errorf("write a message: %w", err)
	}
	return r, nil
}
