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
