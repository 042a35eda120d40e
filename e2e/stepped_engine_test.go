package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/schema"
)

// steppedEngine is an OpenAI-compatible server that answers as many calls as the
// test allows. Further calls wait, so that the test can kill processes at a
// known point.
type steppedEngine struct {
	url string

	mu      sync.Mutex
	changed chan struct{}     // closed and replaced when a field below changes
	left    int               // calls that may be answered; below 0: all
	until   map[schema.ID]int // number of a rollout's last call that may be answered besides
	waiting int
}

func startSteppedEngine(t *testing.T, script string) *steppedEngine {
	t.Helper()
	s, err := replay.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	e := &steppedEngine{changed: make(chan struct{}), until: map[schema.ID]int{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Messages, Tools json.RawMessage
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		key, _ := schema.ParseKey(r.Header.Get("X-Request-Id"))
		if !e.enter(r.Context(), key) {
			return
		}
		c := &schema.Call{Tools: body.Tools}
		if err := json.Unmarshal(body.Messages, &c.Messages); err != nil {
			t.Error(err)
		}
		reply, err := s.Answer(r.Context(), c)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, err)
			return
		}
		fmt.Fprintf(w, `{"choices":[{"index":0,"message":%s,"finish_reason":%q}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`, reply.Message, reply.FinishReason)
	}))
	t.Cleanup(func() {
		e.allow(-1)
		srv.Close()
	})
	e.url = srv.URL
	return e
}

// update changes the engine and wakes everything that waits for a change.
func (e *steppedEngine) update(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	close(e.changed)
	e.changed = make(chan struct{})
}

// allow lets n calls more be answered; -1: all.
func (e *steppedEngine) allow(n int) { e.update(func() { e.left = n }) }

// allowOf lets the calls of a rollout up to this number be answered.
func (e *steppedEngine) allowOf(id schema.ID, call int) { e.update(func() { e.until[id] = call }) }

// enter waits until the call may be answered. It returns false if the client has
// gone.
func (e *steppedEngine) enter(ctx context.Context, key schema.Key) bool {
	e.update(func() { e.waiting++ })
	defer e.update(func() { e.waiting-- })
	for {
		e.mu.Lock()
		changed, own := e.changed, key.Call > 0 && key.Call <= e.until[key.Rollout]
		ok := own || e.left != 0
		if !own && e.left > 0 {
			e.left--
		}
		e.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// stand waits until all allowed calls are answered and n calls wait.
func (e *steppedEngine) stand(t *testing.T, n int) {
	t.Helper()
	late := time.After(4 * time.Minute)
	for {
		e.mu.Lock()
		changed, ok := e.changed, e.left == 0 && e.waiting == n
		e.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%d calls do not wait", n)
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		}
	}
}

// file writes a worker's configuration that names the engine.
func (e *steppedEngine) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "upstreams.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "stepped:\n  url: %s\n  plain: true\n  model: served\n", e.url), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
