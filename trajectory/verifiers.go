package trajectory

import (
	"cmp"
	"fmt"

	"github.com/turngate/turngate/schema"
)

// Verifiers is a rollout as a trace of verifiers, version 1
// (https://pypi.org/project/verifiers). Its reader is WireTrace.
type Verifiers struct {
	Version   int                       `json:"version"`
	ID        string                    `json:"id"`
	Task      map[string]any            `json:"task"`
	Agent     map[string]any            `json:"agent"`
	Nodes     []VerifiersNode           `json:"nodes"`
	Calls     []map[string]any          `json:"calls"`
	Rewards   map[string]map[string]any `json:"rewards"`
	Metrics   map[string]float64        `json:"metrics"`
	Info      map[string]any            `json:"info"`
	Completed bool                      `json:"is_completed"`
	OK        bool                      `json:"ok"`
	Stop      string                    `json:"stop_condition,omitempty"`
	Timeout   bool                      `json:"is_timeout"`
	Errors    []map[string]string       `json:"errors"`
}

// VerifiersNode is a message and the tokens that it adds to the ones before it. All
// tokens between two answers are at the node of the later one.
type VerifiersNode struct {
	Parent    *int           `json:"parent"`
	Message   map[string]any `json:"message"`
	Sampled   bool           `json:"sampled"`
	Timestamp float64        `json:"timestamp"` // seconds since 1970
	TokenIDs  []int32        `json:"token_ids"`
	Mask      []bool         `json:"mask"`
	Logprobs  []float32      `json:"logprobs"` // of the tokens with a mask
}

// ToVerifiers makes a trace of verifiers of a rollout, which was read with
// Options.Messages and Options.Merge MergeClean: a path of the trace has no way to
// replace tokens. result may be nil. Discarded calls are in calls only.
func ToVerifiers(t *Rollout, result *schema.Result) *Verifiers {
	out := &Verifiers{
		Version: 1, ID: fmt.Sprintf("%s/%d", t.ID, t.Attempt), Nodes: []VerifiersNode{}, Calls: []map[string]any{}, Rewards: map[string]map[string]any{}, Metrics: map[string]float64{},
		Task:   map[string]any{"type": "turngate", "key": t.Task, "data": map[string]any{"name": t.Task, "id": t.Task}},
		Agent:  map[string]any{"name": "agent", "config": map[string]any{}},
		Info:   map[string]any{"rollout": t.ID, "attempt": t.Attempt, "group": t.Group, "index": t.Index, "findings": t.Findings},
		Errors: []map[string]string{}, OK: true,
	}
	if result != nil {
		out.of(result, EndingOf(result, t.Calls))
	}
	w := newWhole(t)
	at := map[*Call]int{} // the node of a call's answer
	for _, c := range t.Calls {
		call := map[string]any{"model": c.Model, "finish_reason": finishOf(c.FinishReason), "time": map[string]float64{"start": seconds(c.At), "end": seconds(c.At + c.MS)}}
		switch {
		case c.Fault != nil:
			call["error"] = map[string]any{"type": c.Fault.Code, "message": c.Fault.Message, "status_code": c.Fault.Status}
		case c.answered:
			call["usage"] = map[string]int64{"prompt_tokens": c.Usage.PromptTokens, "completion_tokens": c.Usage.CompletionTokens}
		}
		if c.answered && c.committed {
			out.turn(c, w, at)
			call["node"] = at[c]
		}
		out.Calls = append(out.Calls, call)
	}
	if w.short > 0 {
		out.Info["prompts_left_out"] = w.short
	}
	return out
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }

// finishOf returns a reason that the format knows, or nil.
func finishOf(reason string) any {
	switch reason {
	case "stop", "length", "tool_calls":
		return reason
	}
	return nil
}

func (v *Verifiers) of(r *schema.Result, ended Ending) {
	v.Completed, v.Stop, v.Timeout = true, stopCondition(r, ended), ended == EndTimeout
	v.Info["ended"] = ended
	v.Agent["config"] = map[string]any{"harness": map[string]any{"id": cmp.Or(r.Agent, "unknown"), "version": r.AgentVersion}}
	for name, value := range r.Rewards {
		v.Rewards[name] = map[string]any{"score": value, "weight": 0.0}
	}
	if r.Reward != nil { // the trace's reward is the sum of scores by weight
		v.Rewards["reward"] = map[string]any{"score": *r.Reward, "weight": 1.0}
	}
	for name, value := range r.Metrics {
		v.Metrics[name] = value
	}
	v.OK = ended != EndAgent && ended != EndFault
	if f := r.Fault; f != nil && !v.OK {
		v.Errors = append(v.Errors, map[string]string{"type": f.Code, "message": f.Error()})
	}
}

// stopCondition returns the format's word for the end of a rollout. Its readers take
// a trace for truncated by the names of verifiers' own limits.
func stopCondition(r *schema.Result, ended Ending) string {
	switch {
	case ended == EndStop:
		return "agent_completed"
	case ended == EndTimeout:
		return "agent_timeout"
	case ended == EndContext:
		return "max_total_tokens"
	case ended == EndLength, ended == EndCap && r.Fault.Code == schema.CodeTokenCap:
		return "max_output_tokens"
	case ended == EndCap:
		return "max_turns"
	case r.Fault != nil:
		return r.Fault.Code
	default:
		return string(r.Status)
	}
}

// turn adds the messages of a call that the call before it lacks, and its answer.
func (v *Verifiers) turn(c *Call, w *whole, at map[*Call]int) {
	var parent *int
	messages := w.messages(c)
	if p := c.parent; p != nil {
		if n, ok := at[p]; ok {
			parent = &n
			messages = messages[min(p.messages+1, len(messages)):] // the answer before is a node already
		}
	}
	add := func(n VerifiersNode) {
		n.Parent = parent
		i := len(v.Nodes)
		v.Nodes, parent = append(v.Nodes, n), &i
	}
	for _, m := range messages {
		add(VerifiersNode{Message: verifiersMessage(ReadMessage(m)), Timestamp: seconds(c.At), TokenIDs: []int32{}, Mask: []bool{}, Logprobs: []float32{}})
	}
	answer := ReadMessage(c.Message)
	answer.Role = "assistant"
	n := VerifiersNode{Message: verifiersMessage(answer), Sampled: true, Timestamp: seconds(c.At + c.MS), TokenIDs: []int32{}, Logprobs: []float32{}}
	if c.hasIDs {
		n.TokenIDs = c.completion.AppendTo(c.fresh.Unpack())
	}
	n.Mask = make([]bool, len(n.TokenIDs))
	if c.trainable {
		for i := c.fresh.Len(); i < len(n.Mask); i++ {
			n.Mask[i] = true
		}
		n.Logprobs = c.logprobs.Unpack()
	}
	add(n)
	at[c] = *parent
}

// verifiersMessage has the text of a message; the format takes no audio, and
// images are named.
func verifiersMessage(m Message) map[string]any {
	switch m.Role {
	case "system", "developer":
		return map[string]any{"role": "system", "content": m.Text}
	case "tool", "function":
		return map[string]any{"role": "tool", "tool_call_id": m.ToolCall, "content": m.Text}
	case "assistant":
		out := map[string]any{"role": "assistant", "content": m.Text}
		if m.Reasoning != "" {
			out["reasoning_content"] = m.Reasoning
		}
		var calls []map[string]string
		for _, t := range m.Tools {
			calls = append(calls, map[string]string{"id": t.ID, "name": t.Name, "arguments": t.Arguments})
		}
		if calls != nil {
			out["tool_calls"] = calls
		}
		return out
	default:
		return map[string]any{"role": "user", "content": m.Text}
	}
}
