// Package upstream answers model calls with an OpenAI-compatible server such as
// vLLM or SGLang. It asks the server for token ids and log-probs, moves them
// from the answer to the reply, and passes the server's message on unchanged.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/masks"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Config describes the server.
type Config struct {
	URL   string // base URL, with or without /v1
	Key   string // API key; empty: none
	Model string // sent instead of the agent's model; empty: the server's only model
	// MaxTokens is the largest completion of a call in tokens; 0: no limit.
	MaxTokens int
	// Version is the policy version that the server runs, for the replies.
	Version string
	// TopLogprobs is the number of alternatives to request for each token; 0:
	// none.
	TopLogprobs int
	// NoThinking turns thinking off in chat templates such as Qwen's: it sets
	// chat_template_kwargs.enable_thinking to false.
	NoThinking bool
	// KeepReasoning asks for the model's reasoning beside its earlier tool calls: agents
	// drop it, and the engine of a model that thinks between tool calls may refuse a call
	// without it.
	KeepReasoning bool
	// Plain requests neither token ids nor log-probs, for an upstream that has
	// none and serves evaluation only.
	Plain bool
	// Price is the price of the model, for the cost in the replies; nil: not known.
	Price *Price
	// Name is the upstream's name in faults; empty: the URL's host.
	Name string
	// Forget is the time after which a refused parameter is tried again.
	// Default 10 min.
	Forget time.Duration
	Client *http.Client // nil: http.DefaultClient
}

// Upstream answers calls. It is safe for concurrent use.
type Upstream struct {
	cfg     Config
	base    string
	served  served
	learned learned
	broken  broken
	outage  outage
}

// KeyFromEnvironment returns TURNGATE_UPSTREAM_KEY, or the content of the file
// TURNGATE_UPSTREAM_KEY_FILE. Without both the key is empty.
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

// New checks the configuration. It sends no request.
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
		c.Client = &http.Client{Transport: &masks.Transport{Base: http.DefaultTransport}}
	}
	c.Name = cmp.Or(c.Name, u.Host)
	return &Upstream{cfg: c, base: base, learned: learned{forget: cmp.Or(c.Forget, 10*time.Minute)}}, nil
}

// maxBody is the largest answer that is read, in bytes.
const maxBody = 64 << 20

// maxTries bounds the requests of one call: one for each parameter that the
// upstream does not know, and one for a completion that is too long.
const maxTries = 8

// Answer sends a call to the server. The reply has the whole answer; its Edits
// name the agent's parameters that were changed or left out. If emit is not nil,
// the answer is streamed: emit gets each piece with its ids and log-probs, and an
// error of emit ends the call. A stream that breaks off returns a retryable fault.
// A request that fails again and again while the upstream answers others returns a
// schema.CodeBadAnswer; so does a server of another kind. The time until the next try,
// which a fault says, grows while the upstream answers nothing.
func (u *Upstream) Answer(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
	var reply *schema.Reply
	var err error
	if emit != nil {
		reply, err = u.stream(ctx, c, emit)
	} else {
		reply, err = u.answer(ctx, &request{u: u, call: c}, u.post)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, u.named(err)
		}
		return nil, u.named(u.judge(ctx, c, u.paced(err)))
	}
	u.broken.succeeded(identity(c))
	u.outage.over()
	return reply, nil
}

// answer sends the request. It repeats the request with a change if the refusal
// names one.
func (u *Upstream) answer(ctx context.Context, q *request, ask func(ctx context.Context, body []byte, into any) error) (*schema.Reply, error) {
	ctx = context.WithValue(ctx, callKey{}, q.call.Key)
	for range maxTries {
		body, err := q.build(ctx)
		if err != nil {
			return nil, err
		}
		var got completion
		if err = ask(ctx, body, &got); err == nil {
			return u.reply(&got, q)
		}
		var no *refusal
		if !errors.As(err, &no) {
			return nil, err
		}
		if !q.mend(no) {
			return nil, q.blame(no)
		}
	}
	return nil, fail(http.StatusBadRequest, "refuses one parameter after the other")
}

// named adds the upstream's name to a fault, and masks its key.
func (u *Upstream) named(err error) error {
	var f *schema.Fault
	if !errors.As(err, &f) {
		return err
	}
	fault := *f
	text := masks.Of(u.cfg.Key).Text(f.Message) // an error within a stream quotes it, too
	fault.Message = schema.Clip("upstream "+u.cfg.Name+": "+text, maxMessage)
	return &fault
}

// callKey is the context key of the key of the current call.
type callKey struct{}

// maxMessage bounds the text of a fault, in bytes.
const maxMessage = 4000

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
		return fail(http.StatusBadGateway, "the answer broke off: %v", err)
	}
	if res.StatusCode != http.StatusOK {
		return refused(res, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return badAnswer("it cannot be read: %v", rawjson.Plain(err))
	}
	return nil
}

// send sends a request; the caller reads and closes the body.
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
		for _, name := range sglHeaders() {
			if !u.cfg.Plain {
				req.Header.Set(name, "1")
			}
		}
	}
	if key, ok := ctx.Value(callKey{}).(string); ok { // for the logs of the upstream and of proxies before it
		req.Header.Set("X-Request-Id", key)
	}
	res, err := u.cfg.Client.Do(req)
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return nil, fail(http.StatusServiceUnavailable, "it cannot be reached: %v", err)
		}
		return nil, fail(http.StatusBadGateway, "no answer came: %v", err)
	}
}

func fail(status int, format string, args ...any) *schema.Fault {
	f := schema.Faultf("call", schema.CodeUpstream, schema.WhoTrainer, format, args...)
	if status < 400 || status > 599 {
		status = http.StatusBadGateway
	}
	f.Status = status
	return f
}

// badAnswer returns the fault of an answer that is refused. Another try seldom
// helps, so a rollout fails after a few.
func badAnswer(format string, args ...any) *schema.Fault {
	f := fail(http.StatusBadGateway, "the answer is refused: "+format, args...)
	f.Code = schema.CodeBadAnswer
	return f
}
