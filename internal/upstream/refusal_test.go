package upstream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// tooLongTogether has engines' texts for a prompt and a bound that are too long
// together.
func tooLongTogether() map[string]string {
	return map[string]string{
		"vLLM 0.32":  `{"error":{"message":"max_tokens=32000 cannot be greater than max_model_len=16384. Please request fewer output tokens. (parameter=max_tokens, value=32000)","type":"BadRequestError","param":"max_tokens","code":400}}`,
		"vLLM 0.11":  `{"error":{"message":"'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 16384 tokens and your request has 9000 input tokens (32000 > 16384 - 9000).","type":"BadRequestError","param":null,"code":400}}`,
		"older vLLM": `{"object":"error","message":"This model's maximum context length is 16384 tokens. However, you requested 41000 tokens (9000 in the messages, 32000 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":null,"code":400}`,
		"SGLang":     `{"object":"error","message":"Requested token count exceeds the model's maximum context length of 16384 tokens. You requested a total of 41000 tokens: 9000 tokens from the input messages and 32000 tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.","type":"BadRequestError","param":null,"code":400}`,
		"OpenAI":     `{"error":{"message":"max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.","type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}}`,
	}
}

// promptTooLong has engines' texts for a prompt that is too long by itself.
func promptTooLong() map[string]string {
	return map[string]string{
		"vLLM 0.32":  `{"error":{"message":"This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=2049)","type":"BadRequestError","param":"input_tokens","code":400}}`,
		"vLLM 0.11":  `{"error":{"message":"This model's maximum context length is 2048 tokens. However, your request has 3000 input tokens. Please reduce the length of the input messages.","type":"BadRequestError","param":null,"code":400}}`,
		"SGLang":     `{"object":"error","message":"The input (3000 tokens) is longer than the model's context length (2048 tokens).","type":"BadRequestError","param":null,"code":400}`,
		"llama.cpp":  `{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":3000,"n_ctx":2048}}`,
		"plain text": `prompt is too long: 3000 tokens > 2048 maximum`,
	}
}

// TestACompletionThatHasNoRoom is requested once more, without its bound.
func TestACompletionThatHasNoRoom(t *testing.T) {
	t.Parallel()
	for name, text := range tooLongTogether() {
		for _, streamed := range []bool{false, true} {
			asked := 0
			u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
				asked++
				switch {
				case body["max_tokens"] != nil:
					w.WriteHeader(http.StatusBadRequest)
					_, _ = io.WriteString(w, text)
				case streamed:
					_, _ = io.WriteString(w, events(`{"prompt_token_ids":[1],"choices":[{"delta":{"content":"ok"},"token_ids":[5],"logprobs":{"content":[{"logprob":-1}]},"finish_reason":"stop"}]}`, "[DONE]"))
				default:
					_, _ = io.WriteString(w, okAnswer)
				}
			})
			var emit func(*schema.Delta) error
			if streamed {
				emit = func(*schema.Delta) error { return nil }
			}
			r, err := u.Answer(t.Context(), with("max_tokens", "32000"), emit)
			if err != nil || !slices.Equal(r.Edits, []string{"max_tokens"}) || asked != 2 {
				t.Errorf("%s: asked %d times: %+v, %v", name, asked, r, err)
			}
		}
	}
}

// TestAPromptThatIsTooLong is reported at once, as a status or in a stream.
func TestAPromptThatIsTooLong(t *testing.T) {
	t.Parallel()
	for name, text := range promptTooLong() {
		asked, inStream := 0, false
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
			asked++
			if inStream {
				_, _ = io.WriteString(w, events(text, "[DONE]"))
				return
			}
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, text)
		})
		check := func(err error) {
			t.Helper()
			var f *schema.Fault
			if !errors.As(err, &f) || f.Code != schema.CodeContext || f.Status != http.StatusBadRequest || f.AgentMessage == "" || asked != 1 {
				t.Errorf("%s: asked %d times: %v", name, asked, err)
			}
		}
		_, err := u.Answer(t.Context(), with("max_tokens", "10"), nil)
		check(err)
		if !json.Valid([]byte(text)) {
			continue
		}
		asked, inStream = 0, true
		_, err = u.Answer(t.Context(), with("max_tokens", "10"), func(*schema.Delta) error { return errors.New("a piece came") })
		check(err)
	}
}

// TestAnEngineThatAlwaysRefuses gets a bounded number of requests.
func TestAnEngineThatAlwaysRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range tooLongTogether() {
		asked := 0
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
			asked++
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, text)
		})
		var f *schema.Fault
		if _, err := u.Answer(t.Context(), with("max_tokens", "32000"), nil); !errors.As(err, &f) || f.Status != http.StatusBadRequest || asked > 2 {
			t.Errorf("%s: asked %d times: %v", name, asked, err)
		}
	}
}

// TestTheContextIsReadFromTheModels, so that a bound that leaves no room is not
// even sent.
func TestTheContextIsReadFromTheModels(t *testing.T) {
	t.Parallel()
	var last map[string]any
	length, lists := 16384, 0
	srv := serveModels(t, func() string {
		lists++
		return fmt.Sprintf(`{"data":[{"id":"served","max_model_len":%d},{"id":"other","max_model_len":8}]}`, length)
	}, func(w http.ResponseWriter, body map[string]any) {
		last = body
		_, _ = io.WriteString(w, okAnswer)
	})
	for _, tt := range []struct {
		limit int
		asked string
		want  any
		edits []string
	}{
		{0, "32000", nil, []string{"max_completion_tokens"}},
		{0, "16384", nil, []string{"max_completion_tokens"}},
		{0, "99999.0", nil, []string{"max_completion_tokens"}},
		{0, "1000", 1000.0, nil},
		{500, "99999.0", 500.0, nil},
		{20000, "32000", nil, []string{"max_completion_tokens"}},
	} {
		u, err := upstream.New(upstream.Config{URL: srv, Model: "served", MaxTokens: tt.limit})
		if err != nil {
			t.Fatal(err)
		}
		lists = 0
		for range 2 {
			r, err := u.Answer(t.Context(), with("max_completion_tokens", tt.asked), nil)
			if err != nil || !slices.Equal(r.Edits, tt.edits) || last["max_completion_tokens"] != tt.want || last["max_tokens"] != nil {
				t.Errorf("%s with a limit of %d: sent %v, %+v, %v", tt.asked, tt.limit, last, r, err)
			}
		}
		if lists != 1 {
			t.Errorf("the models were listed %d times", lists)
		}
	}
}

// TestARefusalThatTheOperatorMustMend: the call waits, and the agent is not blamed.
func TestARefusalThatTheOperatorMustMend(t *testing.T) {
	t.Parallel()
	u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set","type":"BadRequestError","param":null,"code":400}}`)
	})
	var f *schema.Fault
	if _, err := u.Answer(t.Context(), call(), nil); !errors.As(err, &f) || f.Status != http.StatusServiceUnavailable || !strings.Contains(f.Message, "--tool-call-parser") {
		t.Errorf("got %v", err)
	}
}

// TestAnAnswerThatCannotBeTrainedOn names the field.
func TestAnAnswerThatCannotBeTrainedOn(t *testing.T) {
	t.Parallel()
	for field, body := range map[string]string{
		"logprobs":      `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[5,6,7],"logprobs":{"content":[{"logprob":-1}]}}]}`,
		"choices":       `{"choices":[]}`,
		"finish_reason": `{"choices":[{"message":{"role":"assistant","content":"ok"}}]}`,
		"read":          `{"choices":`,
		"tool_calls[0].function.arguments": `{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"bash","arguments":["ls"]}}]},` +
			`"finish_reason":"tool_calls","token_ids":[5],"logprobs":{"content":[{"logprob":-1}]}}]}`,
	} {
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) { _, _ = io.WriteString(w, body) })
		var f *schema.Fault
		if _, err := u.Answer(t.Context(), call(), nil); !errors.As(err, &f) || f.Code != schema.CodeBadAnswer || !strings.Contains(f.Message, field) || !strings.Contains(f.Message, "upstream 127.0.0.1") {
			t.Errorf("%s: %v", field, err)
		}
	}
	u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
		_, _ = io.WriteString(w, strings.Replace(okAnswer, `"stop"`, `"abort"`, 1))
	})
	var f *schema.Fault
	if _, err := u.Answer(t.Context(), call(), nil); !errors.As(err, &f) || f.Code == schema.CodeBadAnswer || f.Status != http.StatusServiceUnavailable {
		t.Errorf("aborted: %v", err)
	}
}

// serveModels is an engine that lists its models.
func serveModels(t *testing.T, models func() string, handle func(w http.ResponseWriter, body map[string]any)) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, models())
			return
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		handle(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestDroppedParametersAreNamed: without ids or log-probs the answer is of no use
// for training.
func TestDroppedParametersAreNamed(t *testing.T) {
	t.Parallel()
	srv := serveModels(t, func() string { return `{"data":[{"id":"served"}]}` }, func(w http.ResponseWriter, _ map[string]any) {
		_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{}}`)
	})
	for _, plain := range []bool{false, true} {
		u, err := upstream.New(upstream.Config{URL: srv, Plain: plain})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if !plain {
			want = []string{"logprobs", "return_token_ids"}
		}
		if r, err := u.Answer(t.Context(), with("temperature", "1"), nil); err != nil || !slices.Equal(r.Edits, want) {
			t.Errorf("plain %t: %+v, %v", plain, r, err)
		}
	}
}
