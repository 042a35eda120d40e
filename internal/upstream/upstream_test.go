package upstream_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// engine answers like vLLM with return_token_ids.
func engine(t *testing.T, handle func(w http.ResponseWriter, body map[string]any)) (*upstream.Upstream, *httptest.Server) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sk-up" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"served"}]}`)
			return
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		handle(w, body)
	}))
	t.Cleanup(srv.Close)
	u, err := upstream.New(upstream.Config{URL: srv.URL, Key: "sk-up", MaxTokens: 100, Version: "v7"})
	if err != nil {
		t.Fatal(err)
	}
	return u, srv
}

func call() *schema.Call {
	return &schema.Call{
		Key: "alpha-1/1/1", Model: "policy", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)},
		Tools: json.RawMessage(`[{"x":1}]`), Params: schema.SortedMap[json.RawMessage]{"temperature": json.RawMessage("0.5"), "max_tokens": json.RawMessage("5000")},
	}
}

func TestIDsAndLogprobsAreTakenOut(t *testing.T) {
	t.Parallel()
	var asked map[string]any
	u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
		asked = body
		_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[5,6],"logprobs":{"content":[{"logprob":-0.5},{"logprob":-1}]}}],
			"prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	})
	r, err := u.Answer(t.Context(), call(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Message) != `{"role":"assistant","content":"ok"}` || !reflect.DeepEqual(r.PromptIDs.Unpack(), []int32{1, 2, 3}) || !reflect.DeepEqual(r.CompletionIDs.Unpack(), []int32{5, 6}) ||
		!reflect.DeepEqual(r.Logprobs.Unpack(), []float32{-0.5, -1}) || r.Versions[0].Version != "v7" || r.Versions[0].End != 2 || r.Usage.PromptTokens != 3 {
		t.Fatalf("got %+v", r)
	}
	if asked["model"] != "served" || asked["logprobs"] != true || asked["return_token_ids"] != true || asked["max_tokens"] != 100.0 || asked["temperature"] != 0.5 || asked["tools"] == nil {
		t.Fatalf("asked %v", asked)
	}
}

// TestAServerWithoutTokenIDs is of no use for training: the fault names the
// refused field, and the call is not repeated without it. A plain configuration
// does not request token ids at all.
func TestAServerWithoutTokenIDs(t *testing.T) {
	t.Parallel()
	n := 0
	_, srv := engine(t, func(w http.ResponseWriter, body map[string]any) {
		n++
		if _, ok := body["return_token_ids"]; ok {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"Unrecognized request argument: return_token_ids"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{}}`)
	})
	for _, plain := range []bool{false, true} {
		u, err := upstream.New(upstream.Config{URL: srv.URL, Key: "sk-up", Name: "lab", Plain: plain})
		if err != nil {
			t.Fatal(err)
		}
		n = 0
		r, err := u.Answer(t.Context(), call(), nil)
		var f *schema.Fault
		switch {
		case plain && (err != nil || len(r.CompletionIDs) != 0):
			t.Errorf("plain: got %+v, %v", r, err)
		case !plain && (!errors.As(err, &f) || f.Code != schema.CodeBadAnswer || !strings.Contains(f.Message, "upstream lab") || !strings.Contains(f.Message, "return_token_ids")):
			t.Errorf("got %v", err)
		}
		if n != 1 {
			t.Errorf("plain %t: asked %d times", plain, n)
		}
	}
}

func TestRefusalsBecomeFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status, want int
		body, code   string
	}{
		{400, 400, "bad tool", "upstream"}, {422, 400, "x", "upstream"}, {429, 429, "", "upstream"}, {500, 500, "", "upstream"}, {503, 503, "", "upstream"},
		{404, 503, "no model", "upstream"}, {400, 400, "maximum context length is 10", "context_length_exceeded"},
	} {
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		})
		_, err := u.Answer(t.Context(), call(), nil)
		var f *schema.Fault
		if !errors.As(err, &f) || f.Status != tt.want || f.Code != tt.code {
			t.Errorf("%d %q: got %+v", tt.status, tt.body, f)
		}
	}
	u, srv := engine(t, nil)
	srv.Close()
	var f *schema.Fault
	if _, err := u.Answer(t.Context(), call(), nil); !errors.As(err, &f) || f.Status != 503 {
		t.Errorf("a server that is away: %v", err)
	}
	for _, url := range []string{"", "localhost:8000", "ftp://x", "http://key@host"} {
		if _, err := upstream.New(upstream.Config{URL: url}); err == nil || strings.Contains(err.Error(), "key@") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
