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
	"strconv"
	"strings"
	"sync/atomic"
	"time"

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
	Client  *http.Client // nil: http.DefaultClient
}

// Upstream answers calls.
type Upstream struct {
	cfg  Config
	base string
	// plain is set once the server has refused the fields that ask for ids.
	plain atomic.Bool
	model atomic.Pointer[string]
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
	Choices []struct {
		Message      json.RawMessage `json:"message"`
		FinishReason string          `json:"finish_reason"`
		TokenIDs     []int32         `json:"token_ids"`
		Logprobs     *struct {
			Content []struct {
				Logprob float32 `json:"logprob"`
			} `json:"content"`
		} `json:"logprobs"`
	} `json:"choices"`
	PromptTokenIDs []int32      `json:"prompt_token_ids"`
	Usage          schema.Usage `json:"usage"`
}

// Answer is a function for trainer.Serve.
func (u *Upstream) Answer(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
	body, sampling, err := u.body(ctx, c)
	if err != nil {
		return nil, err
	}
	var got completion
	err = u.post(ctx, body, &got)
	if fault := (*schema.Fault)(nil); errors.As(err, &fault) && fault.Status == http.StatusBadRequest && !u.plain.Load() && mentionsIDs(fault.Message) {
		u.plain.Store(true) // a hosted server that knows no token ids
		if body, sampling, err = u.body(ctx, c); err == nil {
			err = u.post(ctx, body, &got)
		}
	}
	if err != nil {
		return nil, err
	}
	if len(got.Choices) != 1 {
		return nil, fail(http.StatusBadGateway, "the upstream answered with %d choices, want 1", len(got.Choices))
	}
	choice := got.Choices[0]
	r := &schema.Reply{
		Message: choice.Message, FinishReason: choice.FinishReason, Usage: got.Usage, Sampling: sampling,
		PromptIDs: schema.PackTokenIDs(got.PromptTokenIDs), CompletionIDs: schema.PackTokenIDs(choice.TokenIDs),
	}
	if lp := choice.Logprobs; lp != nil && len(choice.TokenIDs) > 0 {
		values := make([]float32, len(lp.Content))
		for i, t := range lp.Content {
			values[i] = t.Logprob
		}
		r.Logprobs = schema.PackLogprobs(values)
	}
	if u.cfg.Version != "" {
		r.Versions = []schema.VersionSpan{{Version: u.cfg.Version, End: len(choice.TokenIDs)}}
	}
	if err := r.Validate(); err != nil {
		return nil, fail(http.StatusBadGateway, "the upstream's answer: %v", err)
	}
	return r, nil
}

func mentionsIDs(text string) bool {
	return strings.Contains(text, "return_token_ids") || strings.Contains(text, "logprobs")
}

// body is the agent's request with what training needs added.
func (u *Upstream) body(ctx context.Context, c *schema.Call) (body []byte, sampling json.RawMessage, err error) {
	model, err := u.modelName(ctx)
	if err != nil {
		return nil, nil, err
	}
	params := maps.Clone(map[string]json.RawMessage(c.Params))
	if params == nil {
		params = map[string]json.RawMessage{}
	}
	if limit := u.cfg.MaxTokens; limit > 0 {
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
	if sampling, err = json.Marshal(params); err != nil {
		return nil, nil, fail(http.StatusBadRequest, "the agent's parameters: %v", err)
	}
	if !u.plain.Load() {
		params["logprobs"], params["return_token_ids"] = json.RawMessage("true"), json.RawMessage("true")
	}
	if params["model"], err = json.Marshal(model); err != nil {
		return nil, nil, err
	}
	if params["messages"], err = json.Marshal(c.Messages); err != nil {
		return nil, nil, fail(http.StatusBadRequest, "the agent's messages: %v", err)
	}
	if len(c.Tools) > 0 {
		params["tools"] = c.Tools
	}
	if body, err = json.Marshal(params); err != nil {
		return nil, nil, fail(http.StatusBadRequest, "the agent's request: %v", err)
	}
	return body, sampling, nil
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
	req, err := http.NewRequestWithContext(ctx, method, u.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask the upstream: %w", err)
	}
	if u.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+u.cfg.Key)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := u.cfg.Client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fail(http.StatusServiceUnavailable, "the upstream cannot be reached: %v", err)
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
		f.Code, f.AgentMessage = "context_length_exceeded", "The conversation exceeds the model's context length."
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
