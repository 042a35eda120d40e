package agentrun

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
)

// maxContent is the size in bytes above which a text of a call is left out of its span.
const maxContent = 256 << 10

// maxName bounds names that the agent chose, in bytes.
const maxName = 200

// traced makes a span for each call of an agent, under that of its run, and measures it.
type traced struct {
	gate.Model
	of      context.Context // of the run
	q       *schema.Request
	rec     *record.Record
	metrics *traces.CallMetrics // nil: none
	content bool                // add the texts
}

// Complete implements gate.Model.
func (t traced) Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) error {
	ctx = traces.Under(ctx, t.of) // the call belongs to the run, not to the request of the agent
	if traces.Recorded(ctx) == nil && t.metrics == nil {
		return t.Model.Complete(ctx, c, frames)
	}
	start, call := time.Now(), traces.Call{Model: schema.Clip(record.Masked(t.rec, c.Model), maxName)}
	name := "chat"
	if call.Model != "" {
		name += " " + call.Model
	}
	ctx, span := traces.Start(ctx, name, trace.WithTimestamp(start), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		traces.Operation.String("chat"), traces.Provider.String("turngate"), traces.Conversation.String(string(t.q.ID)), traces.RequestModel.String(call.Model), traces.RequestStream.Bool(c.Stream),
		traces.Tag.String(c.Tag),
	))
	defer func() {
		end := time.Now()
		span.End(trace.WithTimestamp(end))
		call.Took = end.Sub(start)
		t.metrics.Ended(ctx, call)
	}()
	if key, err := schema.ParseKey(c.Key); err == nil {
		span.SetAttributes(traces.CallNumber.Int(key.Call))
	}
	content := t.content && span.IsRecording()
	if content {
		t.text(span, traces.InputMessages, inputMessages(c.Delta().Messages))
	}
	var last schema.Frame
	err := t.Model.Complete(ctx, c, func(f schema.Frame) error {
		switch {
		case f.Kind == schema.FrameFinal:
			last = f
		case f.Kind == schema.FrameDelta && c.Stream && call.FirstChunk == 0:
			call.FirstChunk = time.Since(start)
		}
		return frames(f)
	})
	if call.FirstChunk > 0 {
		span.SetAttributes(traces.FirstChunk.Float64(call.FirstChunk.Seconds()))
	}
	if err != nil {
		call.Fault = faultOfCall(err)
		traces.Failed(span, call.Fault)
		return err
	}
	span.SetAttributes(traces.Generation.String(last.Gen))
	if r := last.Reply; r != nil {
		call.Usage = r.Usage
		span.SetAttributes(traces.FinishReasons.StringSlice([]string{r.FinishReason}), traces.InputTokens.Int64(r.Usage.PromptTokens), traces.OutputTokens.Int64(r.Usage.CompletionTokens))
		if r.Usage.CachedTokens > 0 {
			span.SetAttributes(traces.CachedTokens.Int64(r.Usage.CachedTokens))
		}
		if content {
			t.text(span, traces.OutputMessages, outputMessage(r))
		}
	}
	return nil
}

// faultOfCall returns the fault of a failed call. An abandoned call has no other.
func faultOfCall(err error) *schema.Fault {
	var f *schema.Fault
	if errors.As(err, &f) {
		return f
	}
	return &schema.Fault{Code: schema.CodeAborted}
}

// tool runs a tool of the trainer.
func (t traced) tool(run func(context.Context, schema.ToolCall) (schema.ToolResult, error)) func(context.Context, schema.ToolCall) (schema.ToolResult, error) {
	return func(ctx context.Context, c schema.ToolCall) (schema.ToolResult, error) {
		ctx, span := traces.Start(traces.Under(ctx, t.of), "execute_tool "+c.Name, trace.WithAttributes(
			traces.Operation.String("execute_tool"), traces.ToolName.String(c.Name), traces.ToolType.String("extension"),
		))
		defer span.End()
		if t.content {
			t.text(span, traces.ToolArguments, c.Arguments)
		}
		result, err := run(ctx, c)
		switch {
		case err != nil:
			traces.Failed(span, faultOfCall(err))
		case result.IsError:
			traces.Failed(span, &schema.Fault{Code: "tool_error"})
		}
		if err == nil && t.content {
			t.text(span, traces.ToolResult, []byte(result.Text))
		}
		return result, err
	}
}

// text adds a text to a span, without keys. A long one is left out, since a part of it is
// no JSON. Bytes that are not UTF-8 are replaced: with them the exporter could not send this
// span, nor the spans of other rollouts beside it.
func (t traced) text(span trace.Span, key attribute.Key, text []byte) {
	if span.IsRecording() && len(text) > 0 && len(text) <= maxContent {
		span.SetAttributes(key.String(record.Masked(t.rec, strings.ToValidUTF8(string(text), "\ufffd"))))
	}
}

// message is a message in the form of the semantic conventions.
type message struct {
	Role         string `json:"role"`
	Parts        []part `json:"parts"`
	FinishReason string `json:"finish_reason,omitempty"`
}

// part is a part of a message. A text and a reasoning have content.
type part struct {
	Type      string          `json:"type"`
	Content   string          `json:"content,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Response  string          `json:"response,omitempty"`
}

// inputMessages turns messages of the canonical form into messages of the conventions. An image
// has its type alone.
func inputMessages(all []json.RawMessage) []byte {
	out := make([]message, 0, len(all))
	for _, raw := range all {
		if m, ok := messageOf(raw); ok {
			out = append(out, m)
		}
	}
	data, _ := json.Marshal(out) // strings and JSON that was read
	return data
}

func outputMessage(r *schema.Reply) []byte {
	m, ok := messageOf(r.Message)
	if !ok {
		return nil
	}
	m.FinishReason = r.FinishReason
	data, _ := json.Marshal([]message{m})
	return data
}

func messageOf(raw json.RawMessage) (m message, ok bool) {
	var in struct {
		Role       string          `json:"role"`
		Content    json.RawMessage `json:"content"`
		Reasoning  string          `json:"reasoning_content"`
		ToolCallID string          `json:"tool_call_id"`
		ToolCalls  []struct {
			ID       string `json:"id"`
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	}
	if json.Unmarshal(raw, &in) != nil {
		return m, false
	}
	m.Role = in.Role
	if in.Reasoning != "" {
		m.Parts = append(m.Parts, part{Type: "reasoning", Content: in.Reasoning})
	}
	for _, p := range contentOf(in.Content) {
		if in.Role == "tool" && p.Type == "text" {
			p = part{Type: "tool_call_response", ID: in.ToolCallID, Response: p.Content}
		}
		m.Parts = append(m.Parts, p)
	}
	for _, c := range in.ToolCalls {
		arguments := json.RawMessage(c.Function.Arguments)
		if !json.Valid(arguments) {
			arguments, _ = json.Marshal(c.Function.Arguments)
		}
		m.Parts = append(m.Parts, part{Type: "tool_call", ID: c.ID, Name: c.Function.Name, Arguments: arguments})
	}
	return m, true
}

// contentOf returns the parts of a content: a text, or a list.
func contentOf(raw json.RawMessage) []part {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		if text == "" {
			return nil
		}
		return []part{{Type: "text", Content: text}}
	}
	var list []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	parts := make([]part, len(list))
	for i, p := range list {
		parts[i] = part{Type: schema.Clip(p.Type, maxName), Content: p.Text}
	}
	return parts
}
