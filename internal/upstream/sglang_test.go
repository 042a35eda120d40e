package upstream_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// TestTokenIDsOfSGLang: SGLang 0.5.23 has the ids of a whole answer in its choice, and a
// stream's ids in the last chunk, for a request with its headers.
func TestTokenIDsOfSGLang(t *testing.T) {
	t.Parallel()
	whole := `{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop","prompt_token_ids":[1,2,3],"response_token_ids":[5,6],` +
		`"logprobs":{"content":[{"logprob":-0.5},{"logprob":-1}]}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
	streamed := events(
		`{"choices":[{"delta":{"role":"assistant","content":""}}]}`,
		`{"choices":[{"delta":{"content":"hi"},"logprobs":{"content":[{"logprob":-0.5},{"logprob":-1}]}}]}`,
		`{"choices":[{"delta":{},"finish_reason":"stop"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2},"sglext":{"input_ids":[1,2,3],"output_ids":[[5,6]]}}`, `[DONE]`)
	for name, emit := range map[string]func(*schema.Delta) error{"whole": nil, "stream": func(d *schema.Delta) error { return schema.Validate(d) }} {
		var asked http.Header
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				http.NotFound(w, r)
				return
			}
			asked = r.Header
			if emit == nil {
				_, _ = io.WriteString(w, whole)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, streamed)
		}))
		defer srv.Close()
		u, err := upstream.New(upstream.Config{URL: srv.URL, Model: "m", Version: "v1"})
		if err != nil {
			t.Fatal(err)
		}
		r, err := u.Answer(t.Context(), call(), emit)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(r.PromptIDs.Unpack(), []int32{1, 2, 3}) || !reflect.DeepEqual(r.CompletionIDs.Unpack(), []int32{5, 6}) ||
			!reflect.DeepEqual(r.Logprobs.Unpack(), []float32{-0.5, -1}) || len(r.Edits) > 0 || r.Versions[0].End != 2 {
			t.Errorf("%s: got %+v", name, r)
		}
		if asked.Get("x-sglext-return-input-ids") != "1" || asked.Get("x-sglext-return-output-ids") != "1" {
			t.Errorf("%s: the request has the headers %v", name, asked)
		}
	}
}
