package gate_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/schema"
)

// TestToolsOfTheTrainer are listed and called with the session's key. A tool
// that is not listed cannot be called, and the agent does not get the trainer's
// own words.
func TestToolsOfTheTrainer(t *testing.T) {
	var calls []schema.ToolCall
	var fail error
	h := gatetest.New(t, gatetest.Chat(), &gatetest.Model{}, schema.GateOptions{MaxCalls: 4}, func(c *gate.Config) {
		c.Tools = []schema.ToolSpec{{Name: "search", Description: "Searches.", Parameters: json.RawMessage(`{"type":"object"}`)}}
		c.CallTool = func(_ context.Context, c schema.ToolCall) (schema.ToolResult, error) {
			calls = append(calls, c)
			return schema.ToolResult{V: 1, Text: "found"}, fail
		}
	})
	do := func(method, path, key, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, h.URL+gate.ToolsPath+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(data)
	}
	key := h.Session.Key()
	if status, body := do("GET", "", key, ""); status != 200 || !strings.Contains(body, `"name":"search"`) {
		t.Errorf("the list: %d %s", status, body)
	}
	if status, body := do("POST", "/search", key, `{"q":1}`); status != 200 || !strings.Contains(body, `"text":"found"`) {
		t.Errorf("a call: %d %s", status, body)
	}
	for _, tt := range []struct {
		path, key, body string
		want            int
	}{
		{"/search", "wrong", `{}`, 401}, {"/delete", key, `{}`, 404}, {"/search", key, `[1]`, 400}, {"/search", key, ``, 400},
		{"/search", key, `{"x":"` + strings.Repeat("x", 2<<20) + `"}`, 413},
	} {
		if status, body := do("POST", tt.path, tt.key, tt.body); status != tt.want {
			t.Errorf("%s %.20s: %d %s, want %d", tt.path, tt.body, status, body, tt.want)
		}
	}
	fail = &schema.Fault{Code: "x", Message: "db at 10.0.0.7 is down", Status: 400}
	if status, body := do("POST", "/search", key, `{}`); status != 400 || strings.Contains(body, "10.0.0.7") {
		t.Errorf("a refusal: %d %s", status, body)
	}
	if len(calls) != 2 || calls[0].Key != "alpha-1/1/1" || calls[1].Key != "alpha-1/1/2" || string(calls[0].Arguments) != `{"q":1}` {
		t.Errorf("calls %+v", calls)
	}
	for range 2 {
		_, _ = do("POST", "/search", key, `{}`)
	}
	if status, _ := do("POST", "/search", key, `{}`); status != 403 {
		t.Errorf("beyond the cap: %d", status)
	}
}
