package front

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
}

// TestToolsOfMCP: a client of the SDK submits, reads, cancels and submits again, and goes on
// at another front.
func TestToolsOfMCP(t *testing.T) {
	b := newBench(t)
	connect := func(token string) *mcp.ClientSession {
		t.Helper()
		client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, nil)
		session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: b.url + "/mcp", HTTPClient: &http.Client{Transport: bearer(token)}, DisableStandaloneSSE: true}, nil)
		harness.Must(t, err)
		t.Cleanup(func() { _ = session.Close() })
		return session
	}
	call := func(session *mcp.ClientSession, name string, arguments map[string]any, into any) string {
		t.Helper()
		res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
		harness.Must(t, err)
		text := res.Content[0].(*mcp.TextContent).Text
		if res.IsError != (into == nil) {
			t.Fatalf("%s: %s", name, text)
		}
		if into != nil {
			harness.Must(t, json.Unmarshal([]byte(text), into))
		}
		return text
	}
	alpha := connect(alphaToken)
	tools, err := alpha.ListTools(t.Context(), nil)
	harness.Must(t, err)
	if len(tools.Tools) != 6 {
		t.Errorf("the tools: %+v", tools.Tools)
	}
	request := map[string]any{"task": map[string]any{"name": "t", "instruction": "x"}, "agent": map[string]any{"name": "mini"}, "sandbox": map[string]any{"backend": "dummy"}}
	var out, again submitted
	call(alpha, "submit_rollout", map[string]any{"request": request, "n": 2, "group": "g"}, &out)
	b.url, _ = b.start()
	alpha = connect(alphaToken)
	call(alpha, "submit_rollout", map[string]any{"request": request, "n": 2, "group": "g"}, &again)
	if len(out.IDs) != 2 || again.Known != 2 || again.IDs[0] != out.IDs[0] {
		t.Errorf("submitted: %+v, %+v", out, again)
	}
	request["agent"] = map[string]any{}
	if text := call(alpha, "submit_rollout", map[string]any{"request": request}, nil); !strings.Contains(text, "request.agent.name") {
		t.Errorf("a wrong request: %s", text)
	}
	var list page
	call(alpha, "list_rollouts", map[string]any{"group": "g", "status": "queued", "limit": 1}, &list)
	if len(list.Rollouts) != 1 || list.Next == "" {
		t.Errorf("a page: %+v", list)
	}
	ended := b.finish(0.5)
	b.Broker.Events.Emit(&schema.Event{Type: schema.EventLog, Rollout: ended, Attempt: 1, Log: &schema.LogEvent{Source: "agent", Text: "one"}})
	var one detail
	call(alpha, "get_rollout", map[string]any{"id": string(ended)}, &one)
	if one.Result == nil || *one.Reward != 0.5 {
		t.Errorf("a rollout: %+v", one)
	}
	var events eventPage
	for seen := 0; seen < 2; {
		call(alpha, "rollout_events", map[string]any{"id": string(ended), "limit": 1, "wait": 30, "after": events.Next}, &events)
		if len(events.Events) != 1 || events.Ended != (seen == 1) {
			t.Fatalf("events %d: %+v", seen, events)
		}
		seen++
	}
	call(alpha, "rollout_events", map[string]any{"id": string(ended), "limit": 201}, nil)
	var retried submitted
	call(alpha, "retry_rollout", map[string]any{"id": string(ended), "key": "k"}, &retried)
	var over cancelled
	call(alpha, "cancel_rollouts", map[string]any{"ids": retried.IDs, "reason": "not wanted"}, &over)
	if len(over.Ended)+len(over.Open) != 1 {
		t.Errorf("cancelled: %+v", over)
	}
	if text := call(connect(betaToken), "get_rollout", map[string]any{"id": string(ended)}, nil); !strings.HasPrefix(text, codeNotFound) {
		t.Errorf("a rollout of another trainer: %s", text)
	}
}

// TestABatchOfMCPIsRefused: its calls would run at once, beyond the bounds of a trainer.
func TestABatchOfMCPIsRefused(t *testing.T) {
	b := newBench(t)
	one := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for body, status := range map[string]int{
		" [" + one + "," + one + "]":      http.StatusBadRequest,
		strings.Repeat(" ", maxMessage+1): http.StatusRequestEntityTooLarge,
	} {
		r := b.request("POST", "/mcp", alphaToken, nil)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		b.do(r, status, nil)
	}
}
