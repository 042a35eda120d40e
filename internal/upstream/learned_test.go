package upstream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

const okAnswer = `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[5],"logprobs":{"content":[{"logprob":-0.5}]}}],"prompt_token_ids":[1],"usage":{"prompt_tokens":1,"completion_tokens":1}}`

// with returns a call with parameters, given as pairs of a name and its JSON.
func with(params ...string) *schema.Call {
	c := call()
	c.Params = schema.SortedMap[json.RawMessage]{}
	for i := 0; i+1 < len(params); i += 2 {
		c.Params[params[i]] = json.RawMessage(params[i+1])
	}
	return c
}

// TestUnknownParametersAreLeftOut of all calls, as hosted engines require, and
// each reply names them.
func TestUnknownParametersAreLeftOut(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{
		"OpenAI":      `{"error":{"message":"Unsupported parameter: '%s' is not supported with this model. Use something else.","code":"unsupported_parameter"}}`,
		"older":       `{"error":{"message":"Unrecognized request argument supplied: %s"}}`,
		"pydantic":    `{"error":{"message":"1 validation error:\n  {'type': 'extra_forbidden', 'loc': 'body.%s', 'msg': 'Extra inputs are not permitted', 'input': '3'}","param":"body.x"}}`,
		"FastAPI":     `{"detail":[{"type":"extra_forbidden","loc":["body","%s"],"msg":"Extra inputs are not permitted","input":1}]}`,
		"plain words": `Unknown parameter: '%s'`,
	} {
		var last map[string]any
		asked := 0
		u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
			last = body
			asked++
			for _, name := range []string{"max_tokens", "temperature"} {
				if body[name] != nil {
					w.WriteHeader(http.StatusBadRequest)
					_, _ = fmt.Fprintf(w, form, name)
					return
				}
			}
			_, _ = io.WriteString(w, okAnswer)
		})
		for range 2 {
			r, err := u.Answer(t.Context(), call(), nil)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if strings.Join(r.Edits, ",") != "max_tokens,temperature" || last["max_completion_tokens"] != 100.0 {
				t.Errorf("%s: edits %q, sent %v", name, r.Edits, last)
			}
			var sampling map[string]any
			if err := json.Unmarshal(r.Sampling, &sampling); err != nil || sampling["temperature"] != nil || sampling["max_completion_tokens"] != 100.0 {
				t.Errorf("%s: sampling %s, %v", name, r.Sampling, err)
			}
		}
		if asked != 4 {
			t.Errorf("%s: asked %d times, want 4", name, asked)
		}
	}
}

// TestNothingIsLearnedFromAnAgentsWords, or from a value that is out of range:
// one agent must not change the parameters of others' calls.
func TestNothingIsLearnedFromAnAgentsWords(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]string{
		"range":              `{"error":{"message":"top_p must be in (0, 1], got 1.5. (parameter=top_p, value=1.5)","param":"top_p"}}`,
		"echo of ids":        `{"error":{"message":"stop is odd: Unknown parameter: 'return_token_ids'"}}`,
		"echo in validation": `{"error":{"message":"1 validation error:\n  {'type': 'string_type', 'loc': 'body.stop', 'msg': 'x', 'input': ''}\n  {'type': 'extra_forbidden', 'loc': 'body.temperature'}","param":"body.stop"}}`,
		"overflow":           `{"error":{"message":"This model's maximum context length is 5 tokens, temperature and top_p or not. Please reduce the length of the input prompt.","param":"input_tokens"}}`,
		"messages":           `{"error":{"message":"Unknown parameter: 'messages'"}}`,
		"not sent":           `{"error":{"message":"Unknown parameter: 'seed'"}}`,
	} {
		refuse, asked := true, 0
		var last map[string]any
		u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
			last = body
			asked++
			if refuse {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, refusal)
				return
			}
			_, _ = io.WriteString(w, okAnswer)
		})
		c := with("temperature", "0.5", "top_p", "1.5", "stop", `["x"]`)
		var f *schema.Fault
		if _, err := u.Answer(t.Context(), c, nil); !errors.As(err, &f) || f.Status != http.StatusBadRequest || asked != 1 {
			t.Errorf("%s: asked %d times: %v", name, asked, err)
		}
		if name == "range" && f.AgentMessage != "top_p must be in (0, 1], got 1.5." {
			t.Errorf("the agent reads %q", f.AgentMessage)
		}
		refuse = false
		r, err := u.Answer(t.Context(), c, nil)
		if err != nil || len(r.Edits) != 0 || last["temperature"] != 0.5 || last["top_p"] != 1.5 || last["return_token_ids"] != true || last["logprobs"] != true {
			t.Errorf("%s: then %+v, %v, sent %v", name, r, err, last)
		}
	}
}

// TestLearnedLimitsExpire after a while: the engine may be another one.
func TestLearnedLimitsExpire(t *testing.T) {
	t.Parallel()
	refuse := true
	_, srv := engine(t, func(w http.ResponseWriter, body map[string]any) {
		if refuse && body["temperature"] != nil {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"Unknown parameter: 'temperature'."}}`)
			return
		}
		_, _ = io.WriteString(w, okAnswer)
	})
	u, err := upstream.New(upstream.Config{URL: srv.URL, Key: "sk-up", Forget: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	// With so short a Forget each try is refused, but the number of tries is
	// bounded.
	var f *schema.Fault
	if _, err := u.Answer(t.Context(), with("temperature", "0.5"), nil); !errors.As(err, &f) || f.Status != http.StatusBadRequest {
		t.Errorf("got %v", err)
	}
	refuse = false
	if r, err := u.Answer(t.Context(), with("temperature", "0.5"), nil); err != nil || len(r.Edits) != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// TestOnlyAllowedParametersReachTheUpstream, from any dialect.
func TestOnlyAllowedParametersReachTheUpstream(t *testing.T) {
	t.Parallel()
	var last map[string]any
	u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
		last = body
		_, _ = io.WriteString(w, okAnswer)
	})
	r, err := u.Answer(t.Context(), with("n", "8", "stream", "true", "logprobs", "false", "return_token_ids", "false", "top_logprobs", "99", "temperature", "0.5",
		"model", `"other"`, "chat_template_kwargs", "{}", "user", `"me"`, "guided_json", "{}", "two words", "1", "seed", "null", "max_completion_tokens", "99999.0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"chat_template_kwargs", "guided_json", "model", "n", "top_logprobs"}
	if !slices.Equal(r.Edits, want) {
		t.Errorf("edits %q, want %q", r.Edits, want)
	}
	delete(last, "messages")
	delete(last, "tools")
	if got, _ := json.Marshal(last); string(got) != `{"logprobs":true,"max_completion_tokens":100,"model":"served","return_token_ids":true,"temperature":0.5,"top_logprobs":20}` {
		t.Errorf("sent %s", got)
	}
	for _, bad := range []string{`"99999"`, "1.5", "-1", "0", "[]", "1e400", "true"} {
		var f *schema.Fault
		if _, err := u.Answer(t.Context(), with("max_tokens", bad), nil); !errors.As(err, &f) || f.Status != http.StatusBadRequest || !strings.Contains(f.AgentMessage, "max_tokens") {
			t.Errorf("max_tokens %s: %v", bad, err)
		}
	}
}
