package upstream

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/turngate/turngate/schema"
)

// kind is the treatment of a parameter.
type kind int

const (
	// foreign parameters do not reach the upstream: n would make several answers,
	// and upstreams have many more parameters that an agent must not set.
	foreign kind = iota
	// agents may set these parameters.
	agents
	// quiet parameters do not affect the answer. An agent's are left out and
	// not reported in edits.
	quiet
	// ours are set by this package, so the agent is never to blame for them.
	ours
)

// kindOf returns the kind of a parameter.
func kindOf(name string) kind {
	switch name {
	case "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
		"max_tokens", "max_completion_tokens", "reasoning_effort", "response_format", "tool_choice", "parallel_tool_calls":
		return agents
	case "client_metadata", "include", "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "truncation", "user":
		return quiet
	case "model", "messages", "tools", "stream", "stream_options", "logprobs", "return_token_ids", "top_logprobs", "chat_template_kwargs":
		return ours
	default:
		return foreign
	}
}

// The two names of the bound of a completion; the first is newer.
const (
	maxCompletionTokens = "max_completion_tokens"
	maxTokens           = "max_tokens"
)

// mostTops is the largest top_logprobs that an agent may ask for: OpenAI's
// maximum, and vLLM's default maximum.
const mostTops = 20

// maxEdits bounds the number of edits in a reply.
const maxEdits = 16

// request is the agent's call in the form for the upstream: with the parameters
// that training needs, and without the parameters that the upstream does not
// accept.
type request struct {
	u    *Upstream
	call *schema.Call
	more map[string]string // parameters of the transport, such as stream

	unbounded bool // leave out the bound of the completion
	started   bool // a piece of the answer has gone to the agent

	params map[string]json.RawMessage // as last sent
	edits  map[string]bool
	limit  bool // the last request had a bound
}

// build returns the request's body.
func (q *request) build(ctx context.Context) ([]byte, error) {
	model, length, err := q.u.model(ctx)
	if err != nil {
		return nil, err
	}
	q.params, q.edits = map[string]json.RawMessage{}, map[string]bool{}
	for name, value := range q.call.Params {
		switch {
		case string(value) == "null":
		case kindOf(name) == agents:
			q.params[name] = value
		case kindOf(name) == foreign || name == "model" || name == "chat_template_kwargs":
			q.edit(name)
		}
	}
	if err := q.bound(length); err != nil {
		return nil, err
	}
	q.addOurs()
	for _, name := range q.u.learned.refuses() {
		q.leaveOut(name)
	}
	if q.params["model"], err = json.Marshal(model); err != nil {
		return nil, err
	}
	if q.params["messages"], err = json.Marshal(q.call.Messages); err != nil {
		return nil, fail(http.StatusBadRequest, "the agent's messages: %v", err)
	}
	if len(q.call.Tools) > 0 {
		q.params["tools"] = q.call.Tools
	}
	body, err := json.Marshal(q.params)
	if err != nil {
		return nil, fail(http.StatusBadRequest, "the agent's request: %v", err)
	}
	return body, nil
}

// addOurs adds the parameters of training, of the configuration and of the
// transport.
func (q *request) addOurs() {
	if !q.u.cfg.Plain {
		q.params["logprobs"], q.params["return_token_ids"] = json.RawMessage("true"), json.RawMessage("true")
		if tops := q.tops(); tops > 0 {
			q.params["top_logprobs"] = json.RawMessage(strconv.Itoa(tops))
		}
	}
	if q.u.cfg.NoThinking {
		q.params["chat_template_kwargs"] = json.RawMessage(`{"enable_thinking":false}`)
	}
	for name, value := range q.more {
		q.params[name] = json.RawMessage(value)
	}
}

// tops returns the number of alternatives to request for each token: the larger
// of the configuration's and the agent's, at most the upstream's limit.
func (q *request) tops() int {
	var asked float64
	if raw := q.call.Params["top_logprobs"]; raw != nil && json.Unmarshal(raw, &asked) != nil || asked < 0 {
		asked = 0
		q.edit("top_logprobs")
	}
	if asked > mostTops {
		q.edit("top_logprobs")
	}
	tops := max(int(min(asked, mostTops)), q.u.cfg.TopLogprobs)
	if most, known := q.u.learned.mostTops(); known && tops > most {
		tops = most
		q.edit("top_logprobs")
	}
	return tops
}

// bound sets the bound of the completion from the agent's request and the
// configuration. It leaves out a bound that leaves no room for any prompt, and
// one that the upstream found too large: then the upstream's own bound applies, the
// rest of the context, which is smaller. length is the context in tokens, 0 if
// unknown.
func (q *request) bound(length int) error {
	name, asked := maxTokens, 0
	for _, n := range []string{maxCompletionTokens, maxTokens} {
		raw := q.params[n]
		if raw == nil {
			continue
		}
		delete(q.params, n)
		value, ok := wholeNumber(raw)
		if !ok {
			f := fail(http.StatusBadRequest, "the agent's %s is %s", n, schema.Clip(string(raw), 100))
			f.AgentMessage = n + " must be a whole number of at least 1."
			return f
		}
		if asked == 0 {
			name, asked = n, value
		}
	}
	if limit := q.u.cfg.MaxTokens; limit > 0 && (asked == 0 || asked > limit) {
		asked = limit
	}
	q.limit = false
	switch {
	case asked == 0:
	case q.unbounded || length > 0 && asked >= length:
		q.edit(name)
	default:
		q.params[name], q.limit = json.RawMessage(strconv.Itoa(asked)), true
	}
	return nil
}

// wholeNumber reads an integer of 1 or more; 99999.0 is one.
func wholeNumber(raw json.RawMessage) (int, bool) {
	var value float64
	if json.Unmarshal(raw, &value) != nil || value < 1 || value != math.Trunc(value) {
		return 0, false
	}
	return int(min(value, math.MaxInt32)), true
}

// leaveOut removes a parameter that the upstream does not know. A bound is sent
// under its other name instead.
func (q *request) leaveOut(name string) {
	value, there := q.params[name]
	if !there {
		return
	}
	delete(q.params, name)
	q.edit(name)
	switch name {
	case maxTokens:
		q.params[maxCompletionTokens] = value
	case maxCompletionTokens:
		q.params[maxTokens] = value
	}
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// edit notes that a parameter differs from the agent's. It ignores names that
// cannot be a parameter's.
func (q *request) edit(name string) {
	if len(q.edits) < maxEdits && plainName.MatchString(name) {
		q.edits[name] = true
	}
}

// edited lists the changed and removed parameters.
func (q *request) edited() []string {
	if len(q.edits) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(q.edits))
}

// sampling returns the parameters of the answer as JSON.
func (q *request) sampling() (json.RawMessage, error) {
	rest := maps.Clone(q.params)
	maps.DeleteFunc(rest, func(name string, _ json.RawMessage) bool {
		return kindOf(name) == ours && name != "top_logprobs" && name != "chat_template_kwargs"
	})
	return json.Marshal(rest)
}
