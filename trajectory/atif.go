package trajectory

import (
	"encoding/json"
	"slices"

	"github.com/turngate/turngate/schema"
)

// The versions of ATIF. Audio needs 1.8. See
// https://github.com/harbor-framework/harbor (rfcs/0001-trajectory-format.md).
const (
	atif17 = "ATIF-v1.7"
	atif18 = "ATIF-v1.8"
)

// As17 marks the trajectory as one of version 1.7, for older readers. It is false,
// and changes nothing, if the trajectory has audio.
func (t *ATIF) As17() bool {
	all := append([]*ATIF{t}, t.Subagents...)
	for _, a := range all {
		for _, s := range a.Steps {
			if s.Message.hasAudio() || s.Observation != nil && slices.ContainsFunc(s.Observation.Results, func(o ObservationResult) bool { return o.Content.hasAudio() }) {
				return false
			}
		}
	}
	for _, a := range all {
		a.SchemaVersion = atif17
	}
	return true
}

func (c *Content) hasAudio() bool {
	return slices.ContainsFunc(c.Parts, func(p Part) bool { return p.Type == "audio" })
}

// ATIF is a trajectory in the Agent Trajectory Interchange Format.
type ATIF struct {
	SchemaVersion string         `json:"schema_version"`
	SessionID     string         `json:"session_id,omitempty"`
	TrajectoryID  string         `json:"trajectory_id,omitempty"`
	Agent         AgentInfo      `json:"agent"`
	Steps         []*Step        `json:"steps"`
	Notes         string         `json:"notes,omitempty"`
	FinalMetrics  *FinalMetrics  `json:"final_metrics,omitempty"`
	Extra         map[string]any `json:"extra,omitempty"`
	// Subagents holds each conversation other than the agent's own: of agents
	// that it started, and of helper calls such as titles. The key role of Extra
	// tells them apart.
	Subagents []*ATIF `json:"subagent_trajectories,omitempty"`
}

// AgentInfo names the agent.
type AgentInfo struct {
	Name            string            `json:"name"`
	Version         string            `json:"version"`
	ModelName       string            `json:"model_name,omitempty"`
	ToolDefinitions []json.RawMessage `json:"tool_definitions,omitempty"`
	Extra           map[string]any    `json:"extra,omitempty"`
}

// Sources of a step.
const (
	sourceSystem = "system"
	sourceUser   = "user"
	sourceAgent  = "agent"
)

// Step is one model call of the agent, or a message to the agent.
type Step struct {
	ID           int            `json:"step_id"`
	Timestamp    string         `json:"timestamp,omitempty"` // RFC 3339
	Source       string         `json:"source"`              // system, user or agent
	ModelName    string         `json:"model_name,omitempty"`
	Message      Content        `json:"message"`
	Reasoning    string         `json:"reasoning_content,omitempty"`
	ToolCalls    []ToolCall     `json:"tool_calls,omitempty"`
	Observation  *Observation   `json:"observation,omitempty"`
	Metrics      *Metrics       `json:"metrics,omitempty"`
	Copied       bool           `json:"is_copied_context,omitempty"`
	LLMCallCount *int           `json:"llm_call_count,omitempty"`
	Extra        map[string]any `json:"extra,omitempty"`
}

// ToolCall is a call of a tool by the model.
type ToolCall struct {
	ID        string          `json:"tool_call_id"`
	Name      string          `json:"function_name"`
	Arguments json.RawMessage `json:"arguments"` // an object
	Extra     map[string]any  `json:"extra,omitempty"`
}

// Observation holds the results of a step's tool calls.
type Observation struct {
	Results []ObservationResult `json:"results"`
}

// ObservationResult is one tool's result.
type ObservationResult struct {
	SourceCallID string         `json:"source_call_id,omitempty"`
	Content      Content        `json:"content"`
	Extra        map[string]any `json:"extra,omitempty"`
}

// Metrics holds token counts, token ids and log-probs.
type Metrics struct {
	PromptTokens     int64           `json:"prompt_tokens"`
	CompletionTokens int64           `json:"completion_tokens"`
	PromptIDs        schema.TokenIDs `json:"prompt_token_ids,omitempty"`
	CompletionIDs    schema.TokenIDs `json:"completion_token_ids,omitempty"`
	Logprobs         schema.Logprobs `json:"logprobs,omitempty"`
	Extra            map[string]any  `json:"extra,omitempty"`
}

// FinalMetrics sums up the steps of one trajectory.
type FinalMetrics struct {
	PromptTokens     int64          `json:"total_prompt_tokens"`
	CompletionTokens int64          `json:"total_completion_tokens"`
	Steps            int            `json:"total_steps"`
	Extra            map[string]any `json:"extra,omitempty"`
}

// Content is a text or a list of parts.
type Content struct {
	Text  string
	Parts []Part // if not nil, Text is ignored
}

// MarshalJSON implements json.Marshaler.
func (c Content) MarshalJSON() ([]byte, error) {
	if c.Parts != nil {
		return json.Marshal(c.Parts)
	}
	return json.Marshal(c.Text)
}

// Part is a piece of content.
type Part struct {
	Type   string  `json:"type"` // text, image or audio
	Text   *string `json:"text,omitempty"`
	Source *Source `json:"source,omitempty"`
}

// Source is the location of an image or of audio.
type Source struct {
	MediaType string `json:"media_type"`
	Path      string `json:"path"` // a URL, which may be a data URL
}
