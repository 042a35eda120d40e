package gatetest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect/responses"
)

// Responses is the fixture of package responses.
func Responses() Fixture {
	return Fixture{
		Dialect: responses.Dialect{}, Path: Always("/v1/responses"), KeepAlive: "event: keepalive",
		Body: func(text string, stream bool) string {
			return JSON(object{"model": "policy", "stream": stream, "input": []any{object{"type": "message", "role": "user", "content": []any{object{"type": "input_text", "text": text}}}}})
		},
		Read: readResponses,
		Next: func(t *testing.T, request string, answer []byte) string {
			var items, results []any
			for _, item := range list(parsed(t, answer)["output"]) {
				if items = append(items, item); item["type"] == "function_call" {
					item["arguments"] = rewritten(item["arguments"])
					results = append(results, object{"type": "function_call_output", "call_id": item["call_id"], "output": "done"})
				}
			}
			return with(parsed(t, []byte(request)), "input", append(items, results...)...)
		},
		CallID:  `"call_id":"([^"]*)"`,
		Reasons: map[string]string{"stop": `"status":"completed"`, "length": `{"reason":"max_output_tokens"}`, "tool_calls": `"status":"completed"`, "content_filter": `{"reason":"content_filter"}`},
		Talk: Talk{
			Path: "/v1/responses",
			Head: `{"model":"m","temperature":%d,"input":[`,
			Item: `{"role":"assistant","content":[{"type":"output_text","text":%q}]}`,
			Tail: `],"tools":[%s]}`,
			Tool: `{"type":"function","name":%q}`,
		},
	}
}

type responseItem struct {
	ID, Type, Status, Role, Name, Namespace, Arguments, Input string
	CallID                                                    string `json:"call_id"`
	Content, Summary                                          []struct{ Type, Text string }
}

type response struct {
	ID, Object, Status string
	Output             []responseItem
	Usage              *struct {
		Total int `json:"total_tokens"`
	}
}

// readResponses reads as the API's own client does, and checks that the events
// of a stream agree with the response at its end.
func readResponses(t *testing.T, body []byte, stream bool) (text string, tools []string) {
	t.Helper()
	var r response
	if !stream {
		if err := json.Unmarshal(body, &r); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
	} else {
		r = readResponseEvents(t, body)
	}
	if r.ID == "" || r.Object != "response" || r.Status != "completed" || r.Usage == nil || r.Usage.Total != 10 {
		t.Errorf("got %+v", r)
	}
	for _, item := range r.Output {
		switch item.Type {
		case "message":
			for _, c := range item.Content {
				text += c.Text
			}
		case "function_call":
			tools = append(tools, item.Name+" "+item.Arguments)
		}
	}
	return text, tools
}

func readResponseEvents(t *testing.T, body []byte) (r response) {
	t.Helper()
	seq, deltas := 0, map[string]string{}
	var items []responseItem
	for _, e := range Events(string(body)) {
		var d struct {
			Type     string
			Sequence int    `json:"sequence_number"`
			ItemID   string `json:"item_id"`
			Delta    string
			Item     responseItem
			Response response
		}
		if err := json.Unmarshal([]byte(e.Data), &d); err != nil || d.Type != e.Kind {
			t.Fatalf("%v: %+v", err, e)
		}
		if d.Type == "keepalive" {
			continue
		}
		if d.Sequence != seq {
			t.Errorf("event %s has number %d, want %d", d.Type, d.Sequence, seq)
		}
		seq++
		switch {
		case strings.HasSuffix(d.Type, ".delta"):
			deltas[d.ItemID] += d.Delta
		case d.Type == "response.output_item.done":
			items = append(items, d.Item)
		case d.Type == "response.completed":
			r = d.Response
		}
	}
	if len(items) != len(r.Output) {
		t.Errorf("%d items were done, %d are in the response", len(items), len(r.Output))
	}
	for _, item := range items {
		whole := item.Arguments + item.Input
		for _, c := range append(item.Content, item.Summary...) {
			whole += c.Text
		}
		if deltas[item.ID] != whole {
			t.Errorf("the deltas of %s say %q, the item %q", item.ID, deltas[item.ID], whole)
		}
	}
	return r
}
