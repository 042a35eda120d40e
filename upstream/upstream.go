// Package upstream answers model calls with an OpenAI-compatible server such
// as vLLM or SGLang. It asks the engine for token ids and log-probs, takes
// them out of the answer, and hands the agent's message on as it came.
package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/turngate/turngate/schema"
)

// Config names the server.
type Config struct {
	URL   string // its base, with or without /v1
	Key   string // API key; empty: none
	Model string // sent instead of what the agent asks for; empty: the server's only model
	// MaxTokens caps the completion of each call; 0: no cap.
	MaxTokens int
	// Version names the policy that the server runs, for the replies.
	Version string
	// TopLogprobs asks for that many alternatives of each token; 0: none.
	TopLogprobs int
	// NoThinking asks the model's template not to think, as Qwen's and others'
	// have it: chat_template_kwargs.enable_thinking is false.
	NoThinking bool
	Client     *http.Client // nil: http.DefaultClient
}

// Upstream answers calls.
type Upstream struct {
	cfg   Config
	base  string
	model atomic.Pointer[string]

	mu    sync.Mutex
	edits []string // parameters that the server has refused and that are left out since
}

// KeyFromEnvironment reads TURNGATE_UPSTREAM_KEY, or the file that
// TURNGATE_UPSTREAM_KEY_FILE names.
func KeyFromEnvironment() (string, error) {
	if key := os.Getenv("TURNGATE_UPSTREAM_KEY"); key != "" {
		return key, nil
	}
	path := os.Getenv("TURNGATE_UPSTREAM_KEY_FILE")
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the upstream's key: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// New checks the configuration.
func New(c Config) (*Upstream, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("upstream: %q is not a URL such as http://127.0.0.1:8000", c.URL)
	}
	if u.User != nil {
		return nil, errors.New("upstream: put the key into TURNGATE_UPSTREAM_KEY, not into the URL")
	}
	base := strings.TrimSuffix(u.String(), "/")
	if !strings.HasSuffix(base, "/v1") {
		base += "/v1"
	}
	if c.Client == nil {
		c.Client = http.DefaultClient
	}
	return &Upstream{cfg: c, base: base}, nil
}

// maxBody is the largest answer in bytes that is read.
const maxBody = 64 << 20

// completion is what is read of an answer: OpenAI's fields, and the token ids
// that vLLM adds for return_token_ids.
type completion struct {
	Choices        []choice     `json:"choices"`
	PromptTokenIDs []int32      `json:"prompt_token_ids"`
	Usage          schema.Usage `json:"usage"`
}

// choice is an answer, or a piece of one that is streamed.
type choice struct {
	Message      json.RawMessage `json:"message"`
	Delta        json.RawMessage `json:"delta"`
	FinishReason string          `json:"finish_reason"`
	TokenIDs     []int32         `json:"token_ids"`
	Logprobs     *logprobs       `json:"logprobs"`
}

type logprobs struct {
	Content []struct {
		Logprob float32         `json:"logprob"`
		Top     json.RawMessage `json:"top_logprobs"`
	} `json:"content"`
}

// packed are the log-probs of a choice's ids; none without ids.
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

// maxEdits bounds how many parameters are left out of one call because the
// server refuses them.
const maxEdits = 8

// Answer is a function for trainer.Serve. A parameter that the server refuses
// by name is left out from then on, which every reply says.
func (u *Upstream) Answer(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
	return u.answer(ctx, c, nil, u.post)
}

// answer asks until no parameter is refused. more are parameters of the way in
// which it asks.
func (u *Upstream) answer(ctx context.Context, c *schema.Call, more map[string]string, ask func(ctx context.Context, body []byte, into any) error) (*schema.Reply, error) {
	for range maxEdits {
		body, params, edits, err := u.body(ctx, c, more)
		if err != nil {
			return nil, err
		}
		var got completion
		err = ask(ctx, body, &got)
		var fault *schema.Fault
		if errors.As(err, &fault) && fault.Status == http.StatusBadRequest && u.learn(fault.Message, params) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return u.reply(&got, params, edits)
	}
	return nil, fail(http.StatusBadGateway, "the upstream refuses one parameter after the other")
}

func (u *Upstream) reply(got *completion, params map[string]json.RawMessage, edits []string) (*schema.Reply, error) {
	if len(got.Choices) != 1 {
		return nil, fail(http.StatusBadGateway, "the upstream answered with %d choices, want 1", len(got.Choices))
	}
	for _, ours := range []string{"model", "messages", "tools", "return_token_ids", "logprobs", "stream", "stream_options"} {
		delete(params, ours)
	}
	sampling, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	choice := got.Choices[0]
	r := &schema.Reply{
		Message: choice.Message, FinishReason: choice.FinishReason, Usage: got.Usage, Sampling: sampling, Edits: edits,
		PromptIDs: schema.PackTokenIDs(got.PromptTokenIDs), CompletionIDs: schema.PackTokenIDs(choice.TokenIDs),
	}
	r.Logprobs = choice.packed()
	if len(r.Logprobs) > 0 && u.cfg.TopLogprobs > 0 {
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
	if err := r.Validate(); err != nil {
		return nil, fail(http.StatusBadGateway, "the upstream's answer: %v", err)
	}
	return r, nil
}

// learn finds the parameter that a refusal names, and leaves it out from now
// on. What makes the call what it is is never left out.
func (u *Upstream) learn(refusal string, params map[string]json.RawMessage) bool {
	found := ""
	for name := range params {
		if name != "model" && name != "messages" && name != "tools" && names(refusal, name) && len(name) > len(found) {
			found = name
		}
	}
	if found == "" {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.Contains(u.edits, found) {
		u.edits = append(u.edits, found)
		slices.Sort(u.edits)
	}
	return true
}

// names reports whether a text names a parameter: in quotes, or as a word that
// is no other.
func names(text, parameter string) bool {
	for _, q := range []string{"'", `"`, "`"} {
		if strings.Contains(text, q+parameter+q) {
			return true
		}
	}
	return strings.Contains(parameter, "_") && slices.Contains(strings.FieldsFunc(text, func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), parameter)
}

// body is the agent's request with what training needs added, and without
// what the server has refused.
func (u *Upstream) body(ctx context.Context, c *schema.Call, more map[string]string) (body []byte, params map[string]json.RawMessage, edits []string, err error) {
	model, err := u.modelName(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if params = maps.Clone(map[string]json.RawMessage(c.Params)); params == nil {
		params = map[string]json.RawMessage{}
	}
	u.capTokens(params)
	params["logprobs"], params["return_token_ids"] = json.RawMessage("true"), json.RawMessage("true")
	if u.cfg.TopLogprobs > 0 {
		params["top_logprobs"] = json.RawMessage(strconv.Itoa(u.cfg.TopLogprobs))
	}
	if u.cfg.NoThinking {
		params["chat_template_kwargs"] = json.RawMessage(`{"enable_thinking":false}`)
	}
	for name, value := range more {
		params[name] = json.RawMessage(value)
	}
	u.mu.Lock()
	for _, name := range u.edits {
		if value, there := params[name]; there {
			delete(params, name)
			edits = append(edits, name)
			if name == "max_tokens" && params["max_completion_tokens"] == nil { // the newer name
				params["max_completion_tokens"] = value
			}
		}
	}
	u.mu.Unlock()
	if params["model"], err = json.Marshal(model); err != nil {
		return nil, nil, nil, err
	}
	if params["messages"], err = json.Marshal(c.Messages); err != nil {
		return nil, nil, nil, fail(http.StatusBadRequest, "the agent's messages: %v", err)
	}
	if len(c.Tools) > 0 {
		params["tools"] = c.Tools
	}
	if body, err = json.Marshal(params); err != nil {
		return nil, nil, nil, fail(http.StatusBadRequest, "the agent's request: %v", err)
	}
	return body, params, edits, nil
}

// capTokens bounds the completion, under whichever name the agent asks for it.
func (u *Upstream) capTokens(params map[string]json.RawMessage) {
	limit := u.cfg.MaxTokens
	if limit == 0 {
		return
	}
	capped := false
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		var asked int
		if json.Unmarshal(params[name], &asked) == nil && asked > 0 {
			params[name] = json.RawMessage(strconv.Itoa(min(asked, limit)))
			capped = true
		}
	}
	if !capped {
		params["max_tokens"] = json.RawMessage(strconv.Itoa(limit))
	}
}

// modelName is the configured model, or the only one that the server lists.
func (u *Upstream) modelName(ctx context.Context) (string, error) {
	if u.cfg.Model != "" {
		return u.cfg.Model, nil
	}
	if m := u.model.Load(); m != nil {
		return *m, nil
	}
	var list struct{ Data []struct{ ID string } }
	if err := u.do(ctx, http.MethodGet, "/models", nil, &list); err != nil {
		return "", err
	}
	if len(list.Data) != 1 {
		return "", fail(http.StatusServiceUnavailable, "the upstream lists %d models: say which one with --model", len(list.Data))
	}
	u.model.Store(&list.Data[0].ID)
	return list.Data[0].ID, nil
}

func (u *Upstream) post(ctx context.Context, body []byte, into any) error {
	return u.do(ctx, http.MethodPost, "/chat/completions", body, into)
}

func (u *Upstream) do(ctx context.Context, method, path string, body []byte, into any) error {
	res, err := u.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return fail(http.StatusBadGateway, "the upstream's answer broke off: %v", err)
	}
	if res.StatusCode != http.StatusOK {
		return refused(res, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fail(http.StatusBadGateway, "the upstream's answer cannot be read: %v", err)
	}
	return nil
}

// send asks the server; the answer's body is still to be read.
func (u *Upstream) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask the upstream: %w", err)
	}
	if u.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+u.cfg.Key)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := u.cfg.Client.Do(req)
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		return nil, fail(http.StatusServiceUnavailable, "the upstream cannot be reached: %v", err)
	}
}

// refused maps the server's refusal to a fault. What the agent's request is to
// blame for is final, all else is asked again.
func refused(res *http.Response, data []byte) *schema.Fault {
	text := schema.Clip(strings.TrimSpace(string(data)), 2000)
	status := res.StatusCode
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound:
		// The trainer's configuration is wrong, which the agent cannot help.
		f := fail(http.StatusServiceUnavailable, "the upstream says %s: %s", res.Status, text)
		f.RetryAfterMS = 5000
		return f
	case strings.Contains(text, "context length") || strings.Contains(text, "context_length") || strings.Contains(text, "maximum context"):
		f := fail(http.StatusBadRequest, "the upstream says %s: %s", res.Status, text)
		f.Code, f.AgentMessage = schema.CodeContext, "The conversation exceeds the model's context length."
		return f
	case status >= 400 && status < 500 && !schema.RetryableStatus(status):
		return fail(http.StatusBadRequest, "the upstream says %s: %s", res.Status, text)
	}
	f := fail(status, "the upstream says %s: %s", res.Status, text)
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		f.RetryAfterMS = (time.Duration(min(s, 600)) * time.Second).Milliseconds()
	}
	return f
}

func fail(status int, format string, args ...any) *schema.Fault {
	f := schema.Faultf("call", "upstream", schema.WhoTrainer, format, args...)
	if status < 400 || status > 599 {
		status = http.StatusBadGateway
	}
	f.Status = status
	return f
}
