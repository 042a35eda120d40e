package gate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
	"github.com/turngate/turngate/worker/gate/gatetest"
)

func responsesFixture() gatetest.Fixture {
	return gatetest.Fixture{
		Dialect: gate.Responses{}, Path: always("/v1/responses"), KeepAlive: "event: keepalive",
		Body: func(text string, stream bool) string {
			return jsonBody(obj{"model": "policy", "stream": stream, "input": []any{obj{"type": "message", "role": "user", "content": []any{obj{"type": "input_text", "text": text}}}}})
		},
		Read: readResponses,
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
// of a stream say the same as the response at its end.
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
	for _, e := range events(string(body)) {
		var d struct {
			Type     string
			Sequence int    `json:"sequence_number"`
			ItemID   string `json:"item_id"`
			Delta    string
			Item     responseItem
			Response response
		}
		if err := json.Unmarshal([]byte(e.data), &d); err != nil || d.Type != e.kind {
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

func TestResponsesConformance(t *testing.T) { gatetest.Run(t, responsesFixture()) }

func FuzzResponsesDecode(f *testing.F) {
	f.Add([]byte(responsesFixture().Body("hi", true)), []byte(responsesFixture().Body("hi there", true)))
	f.Add([]byte(`{"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]}],"instructions":"s"}`),
		[]byte(`{"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"}],"instructions":"s"}`))
	f.Fuzz(func(t *testing.T, first, second []byte) { decodeTwo(t, gate.Responses{}, first, second) })
}

func FuzzResponsesEncode(f *testing.F) { fuzzEncode(f, responsesFixture()) }

// TestPreviousResponse goes on from an answer that it does not send again.
func TestPreviousResponse(t *testing.T) {
	d := gate.Responses{}.Decoder(gate.NewMemory(0))
	first, err := decodeWith(d, nil, []byte(`{"model":"m","instructions":"be brief","input":"one"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Encoding.Encode(gate.Meta{ID: "a"}, &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"two"}`), FinishReason: "stop"}); err != nil {
		t.Fatal(err)
	}
	second, err := decodeWith(d, nil, []byte(`{"model":"m","instructions":"be long","previous_response_id":"resp_a","input":[{"role":"user","content":"three"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"role":"system","content":"be long"}{"role":"user","content":"one"}{"role":"assistant","content":"two"}{"role":"user","content":"three"}`
	if got := joined(second.Call.Messages); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, err := decodeWith(d, nil, []byte(`{"model":"m","previous_response_id":"resp_b","input":"x"}`)); err == nil || !strings.Contains(err.Error(), "resp_b") {
		t.Errorf("an unknown one: %v", err)
	}
}

func joined(messages []json.RawMessage) string {
	s := ""
	for _, m := range messages {
		s += string(m)
	}
	return s
}
