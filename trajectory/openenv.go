package trajectory

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/turngate/turngate/schema"
)

// OpenEnv is the result of a rollout as OpenEnv's environment for Harbor returns
// it (HarborRolloutResult in https://pypi.org/project/openenv).
type OpenEnv struct {
	TaskID    string             `json:"task_id"`
	TaskName  string             `json:"task_name"`
	Harness   string             `json:"harness"`
	TrialName string             `json:"trial_name"`
	SessionID string             `json:"session_id"`
	Reward    *float64           `json:"reward"`
	Rewards   map[string]float64 `json:"rewards"`
	// RolloutType is train if the result has turns to train on, else eval.
	RolloutType   string                `json:"rollout_type"`
	CaptureLevel  string                `json:"capture_level"` // tokens, logprobs or text
	ParamFixes    []string              `json:"param_fixes"`
	Turns         []OpenEnvTurn         `json:"turns"`
	Conversations []OpenEnvConversation `json:"conversations"`
	NTurns        int                   `json:"n_turns"`
	NRoots        int                   `json:"n_roots"`
	NTrainable    int                   `json:"n_trainable_tokens"`
	MultiTurn     bool                  `json:"multi_turn"`
	Findings      []string              `json:"findings"`
	WallS         float64               `json:"wall_s"`
	PhaseTimings  map[string]float64    `json:"phase_timings"` // seconds
	OK            bool                  `json:"ok"`
	Error         *string               `json:"error"`
	ExceptionType *string               `json:"exception_type"`
}

// OpenEnvTurn is one model call.
type OpenEnvTurn struct {
	Turn         int                 `json:"turn"`
	Role         string              `json:"role"` // agent, subagent, auxiliary or discarded
	FinishReason *string             `json:"finish_reason"`
	PromptIDs    []int32             `json:"prompt_token_ids"`
	IDs          []int32             `json:"completion_token_ids"`
	Logprobs     []float32           `json:"per_token_logps"`
	LossMask     []int8              `json:"loss_mask"` // of prompt and completion
	NodeID       string              `json:"node_id"`
	Discarded    bool                `json:"discarded"`
	Trainable    bool                `json:"trainable"`
	Text         string              `json:"text"`
	ToolCalls    []map[string]string `json:"tool_calls"`
	Messages     []json.RawMessage   `json:"request_messages"`
}

// OpenEnvConversation is a conversation from its beginning to its last answer.
type OpenEnvConversation struct {
	RootID   string            `json:"root_id"`
	Role     string            `json:"role"`
	NTurns   int               `json:"n_turns"`
	Messages []json.RawMessage `json:"messages"`
}

// ToOpenEnv makes OpenEnv's form of a rollout, which was read with
// Options.Messages. result may be nil.
func ToOpenEnv(t *Rollout, result *schema.Result) *OpenEnv {
	out := &OpenEnv{
		TaskID: t.Task, TaskName: t.Task, SessionID: string(t.ID), Reward: t.Reward, Rewards: map[string]float64{}, RolloutType: "eval", CaptureLevel: "text",
		ParamFixes: []string{}, Turns: []OpenEnvTurn{}, Conversations: []OpenEnvConversation{}, Findings: []string{}, PhaseTimings: map[string]float64{}, OK: true,
	}
	if result != nil {
		out.of(result)
	}
	for row := range t.Rows() {
		trained := 0
		for _, s := range row.Calls {
			if s.Trained {
				trained++
			}
		}
		for _, m := range row.LossMask {
			out.NTrainable += int(m)
		}
		out.MultiTurn, out.RolloutType, out.CaptureLevel = out.MultiTurn || trained > 1, "train", "tokens"
	}
	w := newWhole(t)
	for _, c := range t.Calls {
		if !c.answered {
			continue
		}
		if c.parent == nil {
			out.NRoots++
		}
		out.NTurns++
		out.Turns = append(out.Turns, turnOf(c, w, out.NTurns))
	}
	out.conversations(t, w)
	for _, f := range t.Findings {
		out.Findings = append(out.Findings, f.String())
	}
	if w.short > 0 {
		out.Findings = append(out.Findings, fmt.Sprintf("warning: %d prompts are left out: together they are larger than %d bytes", w.short, maxExported))
	}
	return out
}

func (o *OpenEnv) of(r *schema.Result) {
	o.Harness = r.Agent
	for name, v := range r.Rewards {
		o.Rewards[name] = v
	}
	o.ParamFixes = append(o.ParamFixes, r.Edits...)
	var begin, end int64
	for _, p := range r.Phases {
		o.PhaseTimings[p.Name] += float64(p.MS) / 1000
		if begin == 0 {
			begin = p.Start
		}
		end = max(end, p.Start+p.MS)
	}
	o.WallS = float64(end-begin) / 1000
	if r.Fault != nil {
		text, code := r.Fault.Error(), r.Fault.Code
		o.OK, o.Error, o.ExceptionType = false, &text, &code
	}
}

func turnOf(c *Call, w *whole, n int) OpenEnvTurn {
	out := OpenEnvTurn{
		Turn: n, Role: c.Role, NodeID: fmt.Sprint(c.Number), Discarded: !c.committed, Trainable: c.trainable,
		IDs: c.completion.Unpack(), Logprobs: []float32{}, ToolCalls: []map[string]string{}, Messages: w.messages(c), PromptIDs: w.prompt(c),
	}
	if c.Role == schema.TagAux {
		out.Role = "auxiliary"
	}
	if c.FinishReason != "" {
		out.FinishReason = &c.FinishReason
	}
	if out.PromptIDs == nil {
		out.PromptIDs, out.Trainable = []int32{}, false
	}
	if out.Messages == nil {
		out.Messages = []json.RawMessage{}
	}
	if finite(c.logprobs) {
		for _, v := range c.logprobs.Unpack() {
			if c.trainable {
				v = min(v, 0) // the format refuses a rounding error above 0
			}
			out.Logprobs = append(out.Logprobs, v)
		}
	}
	out.LossMask = make([]int8, len(out.PromptIDs)+len(out.IDs))
	for i := len(out.PromptIDs); out.Trainable && i < len(out.LossMask); i++ {
		out.LossMask[i] = 1
	}
	m := ReadMessage(c.Message)
	out.Text = m.Text
	for _, t := range m.Tools {
		out.ToolCalls = append(out.ToolCalls, map[string]string{"name": t.Name, "arguments": t.Arguments})
	}
	return out
}

func finite(l schema.Logprobs) bool {
	for _, v := range l.Unpack() {
		if math.IsInf(float64(v), 0) || math.IsNaN(float64(v)) {
			return false // JSON has no form for it
		}
	}
	return true
}

// conversations adds one conversation for each call that no answered call
// continues.
func (o *OpenEnv) conversations(t *Rollout, w *whole) {
	continued := map[*Call]bool{}
	for _, c := range t.Calls {
		if c.answered && c.parent != nil {
			continued[c.parent] = true
		}
	}
	for _, c := range t.Calls {
		messages := w.messages(c)
		if !c.answered || continued[c] || messages == nil {
			continue
		}
		root, turns := c, 1
		for ; root.parent != nil; root = root.parent {
			turns++
		}
		role := c.Role
		if role == schema.TagAux {
			role = "auxiliary"
		}
		o.Conversations = append(o.Conversations, OpenEnvConversation{RootID: fmt.Sprint(root.Number), Role: role, NTurns: turns, Messages: append(messages, c.Message)})
	}
}
