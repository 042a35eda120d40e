// Package upstreamtest is the test suite of package upstream with a real
// engine: vLLM with a model of 2048 tokens of context and one byte per token.
// It runs against such an engine, or against a recording of its answers.
package upstreamtest

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// Context is the engine's context in tokens.
const Context = 2048

type testCase struct {
	name string
	run  func(t *testing.T, b *bench)
}

func cases() []testCase {
	return []testCase{
		{"whole", whole},
		{"stream", streamed},
		{"bound above the context", boundAboveTheContext},
		{"bound of an unknown context", boundOfAnUnknownContext},
		{"prompt and bound above the context", promptAndBound},
		{"prompt above the context", promptAboveTheContext},
		{"prompt above the context, streamed", promptAboveTheContextStreamed},
		{"values out of range", outOfRange},
		{"echo of a refusal", echo},
		{"several answers", severalAnswers},
		{"alternatives of an agent", alternativesOfAnAgent},
		{"alternatives of the configuration", alternativesOfTheConfiguration},
		{"tool calls", toolCalls},
		{"another model", anotherModel},
	}
}

// Run runs the suite against the engine at url. tape returns the connection of
// each case.
func Run(t *testing.T, url string, tape func(t *testing.T, name string) *Tape) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			name := strings.NewReplacer(" ", "-", ",", "").Replace(c.name)
			c.run(t, &bench{t: t, url: url, tape: tape(t, name)})
		})
	}
}

type bench struct {
	t    *testing.T
	url  string
	tape *Tape
}

func (b *bench) open(c upstream.Config) *upstream.Upstream {
	b.t.Helper()
	c.URL, c.Name = b.url, "lab"
	if c.Client == nil {
		c.Client = &http.Client{Transport: b.tape}
	}
	u, err := upstream.New(c)
	if err != nil {
		b.t.Fatal(err)
	}
	return u
}

// asked checks the number of completions that were requested.
func (b *bench) asked(want int) {
	b.t.Helper()
	if got := b.tape.Asked(); got != want {
		b.t.Errorf("the engine was asked %d times, want %d", got, want)
	}
}

// call returns an agent's call; params are pairs of a name and a JSON value.
func call(prompt string, params ...string) *schema.Call {
	message, _ := json.Marshal(map[string]string{"role": "user", "content": prompt}) // never fails
	c := &schema.Call{Key: "alpha-1/1/1", Model: "policy", Messages: []json.RawMessage{message}, Params: schema.SortedMap[json.RawMessage]{"seed": json.RawMessage("7")}}
	for i := 0; i+1 < len(params); i += 2 {
		c.Params[params[i]] = json.RawMessage(params[i+1])
	}
	return c
}

func (b *bench) answer(u *upstream.Upstream, c *schema.Call) *schema.Reply {
	b.t.Helper()
	r, err := u.Answer(b.t.Context(), c, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if n := r.CompletionIDs.Len(); n == 0 || n != r.Logprobs.Len() || int64(n) != r.Usage.CompletionTokens || r.PromptIDs.Len() == 0 || int64(r.PromptIDs.Len()) != r.Usage.PromptTokens {
		b.t.Errorf("%d prompt ids, %d completion ids, %d log-probs, usage %+v", r.PromptIDs.Len(), n, r.Logprobs.Len(), r.Usage)
	}
	return r
}

func (b *bench) refused(u *upstream.Upstream, c *schema.Call) *schema.Fault {
	b.t.Helper()
	_, err := u.Answer(b.t.Context(), c, nil)
	var f *schema.Fault
	if !errors.As(err, &f) {
		b.t.Fatalf("no fault but %v", err)
	}
	if !strings.Contains(f.Message, "upstream lab") {
		b.t.Errorf("%q does not name the upstream", f.Message)
	}
	return f
}

func edits(t *testing.T, r *schema.Reply, want ...string) {
	t.Helper()
	if !slices.Equal(r.Edits, want) {
		t.Errorf("edits %q, want %q", r.Edits, want)
	}
}

// engines has the ids and log-probs of an engine's answer.
type engines struct {
	Prompt  []int32 `json:"prompt_token_ids"`
	Choices []struct {
		IDs      []int32 `json:"token_ids"`
		Logprobs *struct {
			Content []struct{ Logprob float32 }
		}
	}
}

// whole: ids and log-probs are the engine's own.
func whole(t *testing.T, b *bench) {
	r := b.answer(b.open(upstream.Config{}), call("hi", "max_tokens", "6"))
	edits(t, r)
	b.asked(1)
	var said engines
	if err := json.Unmarshal([]byte(b.tape.Answers()[0]), &said); err != nil {
		t.Fatal(err)
	}
	same(t, r, said.Prompt, said.Choices[0].IDs, said.logprobs())
}

func (e *engines) logprobs() []float32 {
	var all []float32
	for _, c := range e.Choices {
		if c.Logprobs == nil {
			continue
		}
		for _, l := range c.Logprobs.Content {
			all = append(all, l.Logprob)
		}
	}
	return all
}

func same(t *testing.T, r *schema.Reply, prompt, ids []int32, logprobs []float32) {
	t.Helper()
	if !reflect.DeepEqual(r.PromptIDs.Unpack(), prompt) || !reflect.DeepEqual(r.CompletionIDs.Unpack(), ids) || !reflect.DeepEqual(r.Logprobs.Unpack(), logprobs) {
		t.Errorf("the reply has ids %v and log-probs %v, the engine said %v and %v", r.CompletionIDs.Unpack(), r.Logprobs.Unpack(), ids, logprobs)
	}
}

// streamed: the pieces add up to the message, and ids and log-probs are the
// engine's own.
func streamed(t *testing.T, b *bench) {
	var pieces strings.Builder
	var ids []int32
	r, err := b.open(upstream.Config{}).Answer(t.Context(), call("hi", "max_tokens", "6"), func(d *schema.Delta) error {
		var delta struct{ Content string }
		if err := json.Unmarshal(d.Delta, &delta); err != nil {
			return err
		}
		pieces.WriteString(delta.Content)
		ids = append(ids, d.CompletionIDs.Unpack()...)
		return schema.Validate(d)
	})
	if err != nil {
		t.Fatal(err)
	}
	var message struct{ Content string }
	if err := json.Unmarshal(r.Message, &message); err != nil || message.Content != pieces.String() || !reflect.DeepEqual(ids, r.CompletionIDs.Unpack()) {
		t.Errorf("the pieces are %q with ids %v, the message is %s with %v", pieces.String(), ids, r.Message, r.CompletionIDs.Unpack())
	}
	b.asked(1)
	var prompt, completion []int32
	var logprobs []float32
	for _, line := range strings.Split(b.tape.Answers()[0], "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk engines
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatal(err)
		}
		prompt = append(prompt, chunk.Prompt...)
		for _, c := range chunk.Choices {
			completion = append(completion, c.IDs...)
		}
		logprobs = append(logprobs, chunk.logprobs()...)
	}
	same(t, r, prompt, completion, logprobs)
}

// boundAboveTheContext: a bound that leaves no room for a prompt is left out of
// the first request, under each of its names and forms.
func boundAboveTheContext(t *testing.T, b *bench) {
	u := b.open(upstream.Config{})
	for i, p := range [][2]string{{"max_tokens", "32000"}, {"max_completion_tokens", "99999.0"}, {"max_tokens", "2048"}} {
		r := b.answer(u, call(strings.Repeat("a", 1900), p[0], p[1]))
		edits(t, r, p[0])
		if r.Usage.PromptTokens+r.Usage.CompletionTokens > Context {
			t.Errorf("usage is %+v", r.Usage)
		}
		b.asked(i + 1)
	}
	capped := b.open(upstream.Config{MaxTokens: 5})
	r := b.answer(capped, call("hi", "max_completion_tokens", "99999.0"))
	if r.Usage.CompletionTokens > 5 || !strings.Contains(string(r.Sampling), `"max_completion_tokens":5`) {
		t.Errorf("the cap is 5: %+v, %s", r.Usage, r.Sampling)
	}
	edits(t, r)
}

// withoutLength is the connection to an engine that does not list its context.
type withoutLength struct{ *Tape }

func (w withoutLength) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return nil, &url.Error{Op: "get", URL: r.URL.String(), Err: errors.New("not served")}
	}
	return w.Tape.RoundTrip(r)
}

// boundOfAnUnknownContext: after one refusal the bound is left out.
func boundOfAnUnknownContext(t *testing.T, b *bench) {
	u := b.open(upstream.Config{Model: "tiny", Client: &http.Client{Transport: withoutLength{b.tape}}})
	edits(t, b.answer(u, call(strings.Repeat("a", 1900), "max_tokens", "32000")), "max_tokens")
	b.asked(2)
}

func promptAndBound(t *testing.T, b *bench) {
	r := b.answer(b.open(upstream.Config{}), call(strings.Repeat("a", 1900), "max_tokens", "1000"))
	if r.Usage.PromptTokens+r.Usage.CompletionTokens > Context {
		t.Errorf("usage is %+v", r.Usage)
	}
	b.asked(1)
}

func overflow(t *testing.T, f *schema.Fault) {
	t.Helper()
	if f.Code != schema.CodeContext || f.Status != http.StatusBadRequest || f.AgentMessage == "" {
		t.Errorf("got %+v", f)
	}
}

// promptAboveTheContext: the first request is refused, with a bound or without
// one.
func promptAboveTheContext(t *testing.T, b *bench) {
	u := b.open(upstream.Config{})
	overflow(t, b.refused(u, call(strings.Repeat("a", 3000), "max_tokens", "10")))
	overflow(t, b.refused(u, call(strings.Repeat("a", 3000), "max_tokens", "32000")))
	overflow(t, b.refused(u, call(strings.Repeat("a", 3000))))
	b.asked(3)
}

func promptAboveTheContextStreamed(t *testing.T, b *bench) {
	_, err := b.open(upstream.Config{}).Answer(t.Context(), call(strings.Repeat("a", 3000), "max_tokens", "10"), func(*schema.Delta) error { return errors.New("a piece came") })
	var f *schema.Fault
	if !errors.As(err, &f) {
		t.Fatal(err)
	}
	overflow(t, f)
	b.asked(1)
}

// outOfRange: the agent that sent the value gets the engine's text about it,
// and no other call changes.
func outOfRange(t *testing.T, b *bench) {
	u := b.open(upstream.Config{})
	bad := [][2]string{
		{"top_p", "1.5"}, {"temperature", "-1"}, {"top_k", "-5"}, {"presence_penalty", "9"}, {"seed", "1.5"}, {"temperature", `"hot"`}, {"stop", "5"},
		{"logit_bias", `{"99999":5}`}, {"reasoning_effort", `"crazy"`}, {"response_format", `{"type":"json_schema"}`},
	}
	for _, p := range bad {
		f := b.refused(u, call("hi", "max_tokens", "2", p[0], p[1]))
		if f.Status != http.StatusBadRequest || f.Code == schema.CodeContext || !strings.Contains(f.AgentMessage, p[0]) {
			t.Errorf("%s %s: %+v", p[0], p[1], f)
		}
	}
	r := b.answer(u, call("hi", "max_tokens", "2", "top_p", "0.9", "temperature", "0.8", "top_k", "20"))
	edits(t, r)
	b.asked(len(bad) + 1)
	if want := `{"max_tokens":2,"seed":7,"temperature":0.8,"top_k":20,"top_p":0.9}`; string(r.Sampling) != want {
		t.Errorf("sampling %s, want %s", r.Sampling, want)
	}
}

// echo: upstream learns nothing from an agent's own words in a refusal.
func echo(t *testing.T, b *bench) {
	u := b.open(upstream.Config{})
	f := b.refused(u, call("hi", "max_tokens", "2", "reasoning_effort", `"'}\n  {'type': 'extra_forbidden', 'loc': 'body.return_token_ids'} Unknown parameter: 'logprobs'"`))
	if f.Status != http.StatusBadRequest || f.Code == schema.CodeBadAnswer {
		t.Errorf("got %+v", f)
	}
	edits(t, b.answer(u, call("hi", "max_tokens", "2")))
	b.asked(2)
}

func severalAnswers(t *testing.T, b *bench) {
	edits(t, b.answer(b.open(upstream.Config{}), call("hi", "max_tokens", "2", "n", "8", "best_of", "9")), "best_of", "n")
	b.asked(1)
}

func alternativesOfAnAgent(t *testing.T, b *bench) {
	r := b.answer(b.open(upstream.Config{}), call("hi", "max_tokens", "2", "logprobs", "false", "top_logprobs", "50"))
	edits(t, r, "top_logprobs")
	b.asked(1)
	var tops [][]struct{ Token string }
	if err := json.Unmarshal(r.TopLogprobs, &tops); err != nil || len(tops) != r.CompletionIDs.Len() || len(tops[0]) < 20 {
		t.Errorf("alternatives %s, %v", r.TopLogprobs, err)
	}
}

// alternativesOfTheConfiguration: their number is lowered to the engine's limit
// after one refusal.
func alternativesOfTheConfiguration(t *testing.T, b *bench) {
	u := b.open(upstream.Config{TopLogprobs: 50})
	edits(t, b.answer(u, call("hi", "max_tokens", "2")), "top_logprobs")
	edits(t, b.answer(u, call("hi", "max_tokens", "2")), "top_logprobs")
	b.asked(3)
}

// toolCalls arrive as tool calls. A random policy's arguments are arbitrary
// text.
func toolCalls(t *testing.T, b *bench) {
	c := call("hi", "max_tokens", "400", "tool_choice", `{"type":"function","function":{"name":"count_to"}}`)
	c.Tools = json.RawMessage(`[{"type":"function","function":{"name":"count_to","parameters":{"type":"object","properties":{"n":{"enum":[1,2,3]}},"required":["n"],"additionalProperties":false}}}]`)
	r := b.answer(b.open(upstream.Config{}), c)
	var message struct {
		ToolCalls []struct {
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	if err := json.Unmarshal(r.Message, &message); err != nil || len(message.ToolCalls) != 1 || message.ToolCalls[0].Function.Name != "count_to" || message.ToolCalls[0].Function.Arguments == "" {
		t.Errorf("%s: %v", r.Message, err)
	}
	b.asked(1)
}

// anotherModel is a mistake in the configuration, which can be corrected while
// the call waits.
func anotherModel(t *testing.T, b *bench) {
	f := b.refused(b.open(upstream.Config{Model: "other"}), call("hi", "max_tokens", "2"))
	if f.Status != http.StatusServiceUnavailable || !strings.Contains(f.Message, "does not exist") {
		t.Errorf("got %+v", f)
	}
	b.asked(1)
}
