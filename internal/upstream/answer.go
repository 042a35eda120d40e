package upstream

import (
	"encoding/json"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// completion has the fields of an answer: OpenAI's, and the token ids that vLLM and
// SGLang add for return_token_ids.
type completion struct {
	Choices        []choice `json:"choices"`
	PromptTokenIDs []int32  `json:"prompt_token_ids"`
	SGLExt         *sglExt  `json:"sglext"`
	Usage          usage    `json:"usage"`
}

// sglExt is in the last chunk of a stream of SGLang, for the headers of sglHeaders.
type sglExt struct {
	InputIDs  []int32   `json:"input_ids"`
	OutputIDs [][]int32 `json:"output_ids"`
}

// sglHeaders make SGLang add the token ids to a stream. Other servers ignore them.
func sglHeaders() []string {
	return []string{"X-SGLExt-Return-Input-IDs", "X-SGLExt-Return-Output-IDs"}
}

// moveIDs moves the token ids of an answer of SGLang to the places that vLLM has.
func (c *completion) moveIDs(one *choice) {
	if len(c.PromptTokenIDs) == 0 {
		c.PromptTokenIDs = one.PromptTokenIDs
	}
	if len(one.TokenIDs) == 0 {
		one.TokenIDs = one.ResponseTokenIDs
	}
	if e := c.SGLExt; e != nil {
		if len(c.PromptTokenIDs) == 0 {
			c.PromptTokenIDs = e.InputIDs
		}
		if len(one.TokenIDs) == 0 && len(e.OutputIDs) == 1 {
			one.TokenIDs = e.OutputIDs[0]
		}
	}
}

// choice is an answer, or a piece of a streamed one.
type choice struct {
	Message      json.RawMessage `json:"message"`
	Delta        json.RawMessage `json:"delta"`
	FinishReason string          `json:"finish_reason"`
	TokenIDs     []int32         `json:"token_ids"`
	Logprobs     *logprobs       `json:"logprobs"`

	PromptTokenIDs   []int32 `json:"prompt_token_ids"`   // SGLang's
	ResponseTokenIDs []int32 `json:"response_token_ids"` // SGLang's TokenIDs
}

type logprobs struct {
	Content []struct {
		Logprob float32         `json:"logprob"`
		Top     json.RawMessage `json:"top_logprobs"`
	} `json:"content"`
}

// packed returns the log-probs of a choice; none without token ids.
func (c *choice) packed() schema.Logprobs {
	if c.Logprobs == nil || len(c.TokenIDs) == 0 {
		return nil
	}
	values := make([]float32, len(c.Logprobs.Content))
	for i, t := range c.Logprobs.Content {
		values[i] = t.Logprob
	}
	return schema.PackLogprobs(values)
}

// aborted is the finish reason of vLLM and SGLang for a generation that was cut
// off, for example by a pause for new weights.
const aborted = "abort"

func errAborted() error {
	f := fail(http.StatusServiceUnavailable, "it aborted the generation")
	f.Code = schema.CodeAborted
	return f
}

// reply converts an answer to a reply, with the message for the agent and the
// data for training.
func (u *Upstream) reply(got *completion, q *request) (*schema.Reply, error) {
	if len(got.Choices) != 1 {
		return nil, badAnswer("choices: %d came, want 1", len(got.Choices))
	}
	if got.Choices[0].FinishReason == aborted {
		return nil, errAborted()
	}
	got.moveIDs(&got.Choices[0])
	if !u.cfg.Plain { // name the parameters that the upstream dropped silently
		if len(got.Choices[0].TokenIDs) == 0 || len(got.PromptTokenIDs) == 0 {
			q.edit("return_token_ids")
		}
		if got.Choices[0].Logprobs == nil {
			q.edit("logprobs")
		}
	}
	sampling, err := q.sampling()
	if err != nil {
		return nil, err
	}
	choice, used := got.Choices[0], got.Usage.counts()
	used.CostUSD = u.cfg.Price.of(&used)
	r := &schema.Reply{
		Message: withTextArguments(choice.Message), FinishReason: choice.FinishReason, Usage: used, Sampling: sampling, Edits: q.edited(), KeepReasoning: u.cfg.KeepReasoning,
		PromptIDs: schema.PackTokenIDs(got.PromptTokenIDs), CompletionIDs: schema.PackTokenIDs(choice.TokenIDs), Logprobs: choice.packed(),
	}
	if len(r.Logprobs) > 0 && q.params["top_logprobs"] != nil {
		tops := make([]json.RawMessage, 0, r.Logprobs.Len())
		for _, t := range choice.Logprobs.Content {
			tops = append(tops, t.Top)
		}
		if r.TopLogprobs, err = json.Marshal(tops); err != nil {
			return nil, err
		}
	}
	if u.cfg.Version != "" {
		r.Versions = []schema.VersionSpan{{Version: u.cfg.Version, End: len(choice.TokenIDs)}}
	}
	if err := schema.Validate(r); err != nil {
		return nil, badAnswer("%v", err)
	}
	if err := schema.CheckAnswer(r.Message); err != nil { // agents could not read it
		return nil, badAnswer("%v", err)
	}
	return r, nil
}
