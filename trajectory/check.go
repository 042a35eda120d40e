package trajectory

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/turngate/turngate/schema"
)

// Levels of findings.
const (
	LevelInfo    = "info"
	LevelWarning = "warning" // a reader should look at it; nothing is left out because of it
	LevelError   = "error"   // a call is not trained on, or the transcript lacks a part
)

// Finding is a fact about a recorded rollout that a trainer should know.
type Finding struct {
	Level string `json:"level"`
	Code  string `json:"code"`
	Call  int    `json:"call,omitempty"` // 0: the rollout as a whole
	Text  string `json:"text,omitempty"`
}

func (f Finding) String() string { return f.Level + ": " + f.Text }

// tolerance is the largest log-prob above 0 that rounding explains.
const tolerance = 1e-6

func (r *reader) find(level, code string, call int, format string, args ...any) {
	r.out.Findings = append(r.out.Findings, Finding{level, code, call, fmt.Sprintf(format, args...)})
}

// checkAnswer decides whether an answer may be trained on.
func (r *reader) checkAnswer(c *Call, q *schema.Reply) {
	n := c.Number
	if !c.committed {
		c.Untrained = "not_committed"
		r.find(LevelInfo, c.Untrained, n, "the answer of call %d did not reach the agent", n)
		return
	}
	if !slices.Contains(r.o.Roles, c.Tag) {
		c.Untrained = UntrainedRole
		return
	}
	c.trainable = true
	bad := func(code, format string, args ...any) {
		c.trainable, c.Untrained = false, cmp.Or(c.Untrained, code)
		r.find(LevelError, code, n, "call %d "+format, append([]any{n}, args...)...)
	}
	ids, values := q.CompletionIDs, q.Logprobs
	switch {
	case ids.Len() == 0 && q.Retained:
		c.trainable, c.Untrained = false, "ids_retained"
		r.find(LevelInfo, c.Untrained, n, "the trainer keeps the ids of call %d", n)
		return
	case ids.Len() == 0 && c.hasIDs && q.Usage.CompletionTokens == 0:
		c.trainable = false
		r.find(LevelWarning, "empty_completion", n, "the answer of call %d has no tokens", n)
		return
	case ids.Len() == 0:
		bad("ids_missing", "has no completion ids")
		return
	case !c.hasIDs:
		bad("prompt_ids_missing", "has completion ids, but no prompt ids")
		return
	}
	if q.FinishReason == "length" {
		r.find(LevelWarning, "truncated", n, "the answer of call %d was cut at its largest length", n)
	}
	if i := negative(q.PromptIDs); i >= 0 {
		bad("id_negative", "has a negative prompt id at place %d", i)
	} else if i := negative(ids); i >= 0 {
		bad("id_negative", "has a negative completion id at place %d", i)
	}
	if u := q.Usage; u.PromptTokens > 0 && u.PromptTokens != int64(c.Prompt) || u.CompletionTokens > 0 && u.CompletionTokens != int64(c.Completion) {
		r.find(LevelWarning, "usage", n, "call %d reports %d + %d tokens and has %d + %d ids", n, u.PromptTokens, u.CompletionTokens, c.Prompt, c.Completion)
	}
	switch {
	case values.Len() == 0 && r.o.WithoutLogprobs:
		r.find(LevelInfo, "logprobs_missing", n, "call %d has no log-probs", n)
	case values.Len() == 0:
		bad("logprobs_missing", "has no log-probs")
	case values.Len() != ids.Len():
		bad("logprobs_length", "has %d log-probs for %d completion ids", values.Len(), ids.Len())
	default:
		for i, v := range values.Unpack() {
			if math.IsInf(float64(v), 0) || math.IsNaN(float64(v)) {
				bad("logprob_not_finite", "has a log-prob that is not finite, at place %d", i)
				break
			}
			if v > tolerance {
				bad("logprob_positive", "has a log-prob of %g, at place %d", v, i)
				break
			}
		}
	}
	r.checkVersions(c)
}

// checkVersions tells whether each completion id has one policy version.
func (r *reader) checkVersions(c *Call) {
	if len(c.Versions) == 0 {
		return
	}
	at := 0
	for _, v := range c.Versions {
		if v.Start != at || v.End < v.Start {
			break
		}
		at = v.End
	}
	if at != c.Completion {
		r.find(LevelWarning, "version_spans", c.Number, "the policy versions of call %d do not cover its %d tokens once each", c.Number, c.Completion)
	}
}

func negative(ids schema.TokenIDs) int {
	for i := 3; i < len(ids); i += 4 {
		if ids[i] >= 0x80 {
			return i / 4
		}
	}
	return -1
}

// checkAll adds the findings about the rollout as a whole.
func (r *reader) checkAll() {
	offers, wants, answered, nameless, trained := false, false, false, 0, false
	last := 0
	for _, c := range r.out.Calls {
		n := c.Number
		switch {
		case c.Fault != nil:
			r.find(LevelInfo, "refused", n, "call %d got no answer: %s", n, c.Fault.Message)
		case !c.answered:
			r.find(LevelWarning, "unanswered", n, "the transcript has no end of call %d", n)
		case c.Merge == MergeRealign:
			r.find(LevelInfo, "realigned", n, "the prompt of call %d has other tokens for the last %d of the answer before; its own are context", n, c.Drift)
		case c.Merge == MergeFork && (c.Reason == ReasonDrift || c.Reason == ReasonPrompt):
			r.find(LevelWarning, "prefix_mismatch", n, "%s", c.breakText())
		}
		if c.Tag == schema.TagAgent && c.answered {
			answered, offers, wants = true, offers || c.tools, wants || c.said.tools
		}
		if c.row > 0 && c.Trained {
			trained = true
			if len(c.Versions) == 0 {
				nameless++
			}
		}
		if n > last+1 {
			r.find(LevelWarning, "gap", n, "the transcript has no call between %d and %d", last, n)
		}
		last = max(last, n)
	}
	if answered && offers && !wants {
		r.find(LevelWarning, "no_tool_calls", 0, "the agent offers tools and the model calls none")
	}
	if nameless > 0 {
		r.find(LevelInfo, "versions_missing", 0, "%d calls have no policy version", nameless)
	}
	if !trained {
		r.find(LevelError, "nothing_to_train", 0, "no call can be trained on")
	}
	switch {
	case r.committed == nil:
		r.find(LevelInfo, "committed_unknown", 0, "without a result every answer counts as one that reached the agent")
	case r.out.Reward == nil:
		r.find(LevelInfo, "reward_missing", 0, "the rollout has no reward")
	}
	slices.SortStableFunc(r.out.Findings, func(a, b Finding) int { return cmp.Compare(place0(a.Call), place0(b.Call)) })
}

// place0 orders findings by their calls. Findings about the whole rollout, of call
// 0, come last.
func place0(call int) int {
	if call == 0 {
		return math.MaxInt
	}
	return call
}
