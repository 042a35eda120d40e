package upstream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// TestARequestThatAlwaysBreaks: a request that the upstream never answers is a bad
// answer after a few tries if the upstream answers others. If it is down as a whole,
// the request waits.
func TestARequestThatAlwaysBreaks(t *testing.T) {
	t.Parallel()
	abort := func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Replace(fine, `"stop"`, `"abort"`, 1)) }
	for name, tt := range map[string]struct {
		broken func(w http.ResponseWriter)
		down   bool // other requests break, too
		tries  int  // after which the request is a bad answer; 0: never
	}{
		"the connection breaks":      {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, false, 3},
		"an error of the server":     {func(w http.ResponseWriter) { http.Error(w, "CUDA error", http.StatusInternalServerError) }, false, 3},
		"the generation is aborted":  {abort, false, 10},
		"the server is busy":         {func(w http.ResponseWriter) { http.Error(w, "busy", http.StatusServiceUnavailable) }, false, 0},
		"too many requests":          {func(w http.ResponseWriter) { http.Error(w, "busy", http.StatusTooManyRequests) }, false, 0},
		"all connections break":      {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, true, 0},
		"the engine is dead":         {func(w http.ResponseWriter) { http.Error(w, "EngineDeadError", http.StatusInternalServerError) }, true, 0},
		"each generation is aborted": {abort, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var probes atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/models" {
					_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
					return
				}
				body, _ := io.ReadAll(r.Body) // an empty body is no probe
				if poison := strings.Contains(string(body), "poison"); poison || tt.down {
					tt.broken(w)
					return
				}
				probes.Add(1)
				_, _ = io.WriteString(w, fine)
			}))
			defer srv.Close()
			u, err := upstream.New(upstream.Config{URL: srv.URL})
			harness.Must(t, err)
			for try := 1; try <= 12; try++ {
				// The agent repeats the request under a new key.
				c := &schema.Call{Key: fmt.Sprintf("alpha-1/1/%d", try), Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"poison"}`)}, Digest: []byte("poison")}
				_, err := u.Answer(t.Context(), c, nil)
				var f *schema.Fault
				if !errors.As(err, &f) || !schema.RetryableStatus(f.Status) {
					t.Fatalf("try %d: %v", try, err)
				}
				if bad := f.Code == schema.CodeBadAnswer; bad != (tt.tries > 0 && try >= tt.tries) {
					t.Errorf("try %d: %v", try, f)
				}
			}
			if n := probes.Load(); tt.tries == 0 && n > 0 || tt.tries > 0 && n == 0 {
				t.Errorf("%d probes", n)
			}
		})
	}
}

// fine is an answer with one token.
const fine = `{"prompt_token_ids":[1],"choices":[{"message":{"role":"assistant","content":"a"},"finish_reason":"stop","token_ids":[5],"logprobs":{"content":[{"logprob":-1}]}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`

// TestAnAnswerOfAnotherFormIsNamed: the fault names the field, the value and a valid form.
func TestAnAnswerOfAnotherFormIsNamed(t *testing.T) {
	t.Parallel()
	chunk := func(delta string) string { return `data: {"choices":[{"delta":` + delta + `}]}` + "\n\n" }
	for text, want := range map[string]string{
		`[]`:                                    "it cannot be read: an array is not valid: want an object",
		`{"choices":[{"finish_reason":5}]}`:     "choices.finish_reason: a number is not valid: want a string",
		`{"choices":[{"token_ids":["a"]}]}`:     "choices.token_ids: a string is not valid: want a whole number",
		"data: {\"choices\":{}}\n\n":            "a chunk cannot be read: choices: an object is not valid: want an array",
		chunk(`"x"`):                            "delta: a string is not valid: want an object",
		chunk(`{"content":[1]}`):                "delta: content: an array is not valid: want a string",
		chunk(`{"role":1}`):                     "delta: role: a number is not valid: want a string",
		chunk(`{"tool_calls":[{"index":"0"}]}`): "delta: tool_calls: index: a string is not valid: want a whole number",
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":[1]}}]}`): "delta: tool_calls: an array is not valid: want a string",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
				return
			}
			_, _ = io.WriteString(w, text)
		}))
		defer srv.Close()
		u, err := upstream.New(upstream.Config{URL: srv.URL})
		harness.Must(t, err)
		var emit func(*schema.Delta) error
		if strings.HasPrefix(text, "data:") {
			emit = func(*schema.Delta) error { return nil }
		}
		c := &schema.Call{Key: "alpha-1/1/1", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"x"}`)}, Digest: []byte("x")}
		var f *schema.Fault
		if _, err = u.Answer(t.Context(), c, emit); !errors.As(err, &f) || f.Code != schema.CodeBadAnswer || !strings.Contains(f.Message, want) || strings.Contains(f.Message, "Go ") {
			t.Errorf("%s: %v, want it to say %q", text, err, want)
		}
	}
}
