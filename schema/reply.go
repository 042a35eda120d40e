package schema

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Reply is the whole answer to one call.
type Reply struct {
	V            int             `json:"v"`
	Message      json.RawMessage `json:"message"` // an OpenAI chat assistant message
	FinishReason string          `json:"finish_reason"`
	Usage        Usage           `json:"usage"`

	// Data for training. None of it ever reaches the agent.
	PromptIDs     TokenIDs        `json:"prompt_ids,omitempty"`
	CompletionIDs TokenIDs        `json:"completion_ids,omitempty"`
	Logprobs      Logprobs        `json:"logprobs,omitempty"` // one per completion id
	TopLogprobs   json.RawMessage `json:"top_logprobs,omitempty"`
	Versions      []VersionSpan   `json:"versions,omitempty"`
	Sampling      json.RawMessage `json:"sampling,omitempty"` // effective parameters
	Edits         []string        `json:"edits,omitempty"`    // parameters that were changed before the upstream got them, or that it ignored
	Retained      bool            `json:"retained,omitempty"` // the trainer keeps the ids under the call's key
	Digest        []byte          `json:"digest,omitempty"`   // of the retained ids

	// KeepReasoning asks for the message's reasoning in later calls that have its tool
	// calls, also if the agent drops it. Models that think between tool calls need it.
	KeepReasoning bool `json:"keep_reasoning,omitempty"`
}

// maxCost is the largest cost of a call, in USD.
const maxCost = 1_000_000

// Usage counts the tokens of one call.
type Usage struct {
	PromptTokens     int64    `json:"prompt_tokens"`
	CompletionTokens int64    `json:"completion_tokens"`
	CachedTokens     int64    `json:"cached_tokens,omitempty"` // of the prompt, which the model server had cached
	CostUSD          *float64 `json:"cost_usd,omitempty"`      // nil: not known
}

// VersionSpan names the policy version that generated the completion ids from
// Start up to End (excluded).
type VersionSpan struct {
	Version string `json:"version"`
	Start   int    `json:"start"`
	End     int    `json:"end"`
}

// Number returns the number of at most 31 bits at the end of the version's name;
// -1: there is none.
func (v *VersionSpan) Number() int64 {
	from := len(v.Version)
	for from > 0 && v.Version[from-1] >= '0' && v.Version[from-1] <= '9' {
		from--
	}
	n, err := strconv.ParseInt(v.Version[from:], 10, 32)
	if err != nil {
		return -1
	}
	return n
}

// OldestVersion returns the smallest number of the versions; -1: none has a number.
func OldestVersion(spans []VersionSpan) int64 {
	oldest := int64(-1)
	for i := range spans {
		if n := spans[i].Number(); n >= 0 && (oldest < 0 || n < oldest) {
			oldest = n
		}
	}
	return oldest
}

func (r *Reply) sizeHint() int {
	return len(r.Message) + len(r.PromptIDs) + len(r.CompletionIDs) + len(r.Logprobs) + len(r.TopLogprobs) + len(r.Sampling)
}

// check also compares the lengths of ids and log-probs.
func (r *Reply) check() error {
	if len(r.Message) == 0 {
		return invalid("message", "", "want an assistant message")
	}
	if err := checkOneOf("finish_reason", r.FinishReason, "stop", "length", "tool_calls", "content_filter"); err != nil {
		return err
	}
	for _, p := range [...]struct {
		field string
		n     int
	}{{"prompt_ids", len(r.PromptIDs)}, {"completion_ids", len(r.CompletionIDs)}, {"logprobs", len(r.Logprobs)}} {
		if err := checkPacked(p.field, p.n); err != nil {
			return err
		}
	}
	if len(r.Logprobs) > 0 && r.Logprobs.Len() != r.CompletionIDs.Len() {
		return invalid("logprobs", fmt.Sprintf("%d values", r.Logprobs.Len()),
			fmt.Sprintf("as many as completion_ids, which has %d", r.CompletionIDs.Len()))
	}
	if r.Usage.PromptTokens < 0 || r.Usage.CompletionTokens < 0 || r.Usage.CachedTokens < 0 {
		return invalid("usage", r.Usage, "counts of 0 or more")
	}
	if c := r.Usage.CostUSD; c != nil && !(*c >= 0 && *c <= maxCost) {
		return invalid("usage.cost_usd", *c, fmt.Sprintf("0 to %d USD, or nothing if it is not known", maxCost))
	}
	if err := checkCount("versions", len(r.Versions), maxMessages); err != nil {
		return err
	}
	for i, v := range r.Versions {
		if v.Start < 0 || v.End < v.Start {
			return invalid(fmt.Sprintf("versions[%d]", i), v, "0 <= start <= end")
		}
	}
	if err := checkCount("edits", len(r.Edits), maxList); err != nil {
		return err
	}
	for _, e := range r.Edits {
		if err := checkText("edits", e, maxName); err != nil {
			return err
		}
	}
	if n := len(r.Digest); n != 0 && n != 32 {
		return invalid("digest", fmt.Sprintf("%d bytes", n), "want 32")
	}
	return nil
}

// Delta is a piece of an answer that is still being generated: an OpenAI chat
// delta and its token ids.
type Delta struct {
	V             int             `json:"v"`
	Delta         json.RawMessage `json:"delta"` // choices[0].delta of a chat completion chunk
	CompletionIDs TokenIDs        `json:"completion_ids,omitempty"`
	Logprobs      Logprobs        `json:"logprobs,omitempty"`
}

func (d *Delta) sizeHint() int { return len(d.Delta) + len(d.CompletionIDs) + len(d.Logprobs) }

func (d *Delta) check() error {
	if len(d.Delta) == 0 {
		return invalid("delta", "", "want a chat delta")
	}
	if err := checkPacked("completion_ids", len(d.CompletionIDs)); err != nil {
		return err
	}
	return checkPacked("logprobs", len(d.Logprobs))
}

// FrameKind is the kind of a frame.
type FrameKind string

// The frames that a trainer sends for one call. Only FrameAbsent comes from the
// worker itself: it means that the trainer or upstream does not answer.
const (
	FrameAccept   FrameKind = "accept"
	FrameBeat     FrameKind = "beat"
	FrameDelta    FrameKind = "delta"
	FrameFinal    FrameKind = "final"
	FrameFault    FrameKind = "fault"
	FrameNeedFull FrameKind = "need_full"
	FrameAbsent   FrameKind = "absent"
	// FrameOperation asks for an operation of a verification. The worker replies to
	// it.
	FrameOperation FrameKind = "operation"
)

// Frame reports the progress of a call to the gate.
type Frame struct {
	Kind     FrameKind
	Gen      string // name of the generation
	Held     bool   // of accept and beat: the trainer holds calls for now
	More     bool   // of a delta: the next delta has arrived already
	Delta    *Delta // of a delta
	Reply    *Reply // of a final: the whole answer
	Fault    *Fault // the reason why a call is absent or asked again
	Upstream string // of absent: name of the upstream; empty: the trainer
}
