package gate_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/schema"
)

// TestASessionGoesOnWhereOneBeforeEnded: its numbers and its caps belong to the
// attempt.
func TestASessionGoesOnWhereOneBeforeEnded(t *testing.T) {
	var before *gate.Session
	model := &gatetest.Model{Answer: func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
		r, cost := gatetest.Text("ok"), 0.25
		r.Usage.CostUSD = &cost
		return r, nil
	}}
	for i, want := range []struct{ status, calls int }{{200, 1}, {200, 2}, {403, 2}} {
		s := gate.Open(t.Context(), gate.Config{
			Rollout: "alpha-1", Attempt: 1, ModelName: "policy", Options: schema.GateOptions{MaxCalls: 2, MaxRepeats: 2, MaxParallel: 1}, Model: model, Dialects: gate.Dialects(), Before: before,
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
		if cost := stats[schema.TagAgent].CostUSD; cost == nil || *cost != 0.25*float64(want.calls) {
			t.Errorf("session %d: the cost is %v after %d calls", i, cost, want.calls)
		}
		if before != nil && s.Key() != before.Key() {
			t.Error("the key has changed")
		}
		before = s
	}
}

// TestIDsOfCallsOutliveASession: the agent of a later step goes on in the conversation
// of an earlier one.
func TestIDsOfCallsOutliveASession(t *testing.T) {
	var before *gate.Session
	body := `{"model":"policy","messages":[{"role":"user","content":"go"}]}`
	for range 3 {
		var asked schema.Call
		model := &gatetest.Model{Answer: func(_ context.Context, c schema.Call, _ func(schema.Frame) error) (schema.Reply, error) {
			asked = c
			r := gatetest.Text("")
			r.Message = json.RawMessage(`{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"bash","arguments":"{\"a\": 1}"}}]}`)
			return r, nil
		}}
		s := gate.Open(t.Context(), gate.Config{Rollout: "alpha-1", Attempt: 1, ModelName: "policy", Options: schema.GateOptions{MaxCalls: 9, MaxRepeats: 9}, Model: model, Dialects: gate.Dialects(), Before: before})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+s.Key())
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		s.Close()
		for _, m := range asked.Messages[1:] {
			if !strings.Contains(string(m), `"call_0"`) || strings.Contains(string(m), `{\"a\":1}`) {
				t.Errorf("the conversation has %s", m)
			}
		}
		body = gatetest.Chat().Next(t, body, w.Body.Bytes())
		before = s
	}
	if n := strings.Count(body, `"call_0"`); n != 2 { // a call and its result
		t.Errorf("%d times call_0 in %s", n, body)
	}
}
