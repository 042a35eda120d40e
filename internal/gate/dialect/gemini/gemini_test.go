package gemini_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/gate/dialect/gemini"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

func TestConformance(t *testing.T) { gatetest.Run(t, gatetest.Gemini()) }

func FuzzGeminiEncode(f *testing.F) { gatetest.FuzzEncode(f, gatetest.Gemini()) }

// TestGeminiStreamsAnArray if the client did not request events.
func TestGeminiStreamsAnArray(t *testing.T) {
	f := gatetest.Gemini()
	f.Path = gatetest.Always("/v1beta/models/policy:streamGenerateContent")
	h := gatetest.New(t, f, &gatetest.Model{}, schema.GateOptions{})
	status, body := h.Ask(f.Body("hi", false))
	var chunks []json.RawMessage
	if err := json.Unmarshal(body, &chunks); status != 200 || err != nil || len(chunks) != 1 || !strings.Contains(string(chunks[0]), `"ok"`) {
		t.Errorf("%d %v: %s", status, err, body)
	}
}

// TestResponsesWithoutIDs are matched with the calls of the model in the content
// before, which is read once for all contents that follow it.
func TestResponsesWithoutIDs(t *testing.T) {
	body := func(contents int) []byte {
		return []byte(`{"contents":[{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}},{"functionCall":{"id":"own","name":"f","args":{}}}]}` +
			strings.Repeat(`,{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"a"}}},{"functionResponse":{"name":"f","response":{"output":"b"}}}]}`, contents) + `]}`)
	}
	got, err := gatetest.Decode(gemini.Dialect{}, "/", string(body(2)))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat(`{"role":"tool","tool_call_id":"call_0_0","content":"a"}{"role":"tool","tool_call_id":"own","content":"b"}`, 2)
	if said := joined(got.Call.Messages[1:]); said != want {
		t.Errorf("got  %s\nwant %s", said, want)
	}
	cost := func(contents int) float64 {
		b := body(contents)
		return testing.AllocsPerRun(1, func() {
			if _, err := gatetest.Decode(gemini.Dialect{}, "/", string(b)); err != nil {
				t.Error(err)
			}
		})
	}
	if few, many := cost(100), cost(800); many > 12*few {
		t.Errorf("100 contents take %.0f allocations, 800 take %.0f", few, many)
	}
}

func joined(messages []json.RawMessage) string {
	s := ""
	for _, m := range messages {
		s += string(m)
	}
	return s
}
