package gate_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
)

// TestASessionGoesOnWhereOneBeforeEnded: its numbers and its caps belong to the
// attempt.
func TestASessionGoesOnWhereOneBeforeEnded(t *testing.T) {
	var before *gate.Session
	for i, want := range []struct{ status, calls int }{{200, 1}, {200, 2}, {403, 2}} {
		s := gate.Open(t.Context(), gate.Config{
			Rollout: "alpha-1", Attempt: 1, ModelName: "policy", Options: schema.GateOptions{MaxCalls: 2, MaxRepeats: 2, MaxParallel: 1}, Model: okModel{}, Dialects: gate.Dialects(), Before: before,
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"model":"policy","messages":[{"role":"user","content":"again"}]}`))
		r.Header.Set("Authorization", "Bearer "+s.Key())
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		s.Close()
		stats, _ := s.Stats()
		if w.Code != want.status || s.Calls() != want.calls || stats[schema.TagAgent].Count != want.calls {
			t.Fatalf("session %d: status %d, calls %d, stats %v, want %+v: %s", i, w.Code, s.Calls(), stats, want, w.Body)
		}
		if before != nil && s.Key() != before.Key() {
			t.Error("the key has changed")
		}
		before = s
	}
}
