package responses_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/dialect/responses"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

func TestConformance(t *testing.T) { gatetest.Run(t, gatetest.Responses()) }

func FuzzResponsesEncode(f *testing.F) { gatetest.FuzzEncode(f, gatetest.Responses()) }

// TestPreviousResponse continues from an answer that it does not send again.
func TestPreviousResponse(t *testing.T) {
	d := history.NewReader(responses.Dialect{}, history.NewMemory(0), history.AsSent)
	first, err := gatetest.DecodeWith(d, gatetest.Posted("/"), []byte(`{"model":"m","instructions":"be brief","input":"one"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Encoding.Encode(dialect.Meta{ID: "a"}, &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"two"}`), FinishReason: "stop"}); err != nil {
		t.Fatal(err)
	}
	second, err := gatetest.DecodeWith(d, gatetest.Posted("/"), []byte(`{"model":"m","instructions":"be long","previous_response_id":"resp_a","input":[{"role":"user","content":"three"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"role":"system","content":"be long"}{"role":"user","content":"one"}{"role":"assistant","content":"two"}{"role":"user","content":"three"}`
	if got := joined(second.Call.Messages); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, err := gatetest.DecodeWith(d, gatetest.Posted("/"), []byte(`{"model":"m","previous_response_id":"resp_b","input":"x"}`)); err == nil || !strings.Contains(err.Error(), "resp_b") {
		t.Errorf("an unknown one: %v", err)
	}
}

// TestAChainOfManyMessages is refused like one request with them.
func TestAChainOfManyMessages(t *testing.T) {
	h := gatetest.New(t, gatetest.Responses(), &gatetest.Model{}, schema.GateOptions{}, func(c *gate.Config) { c.MaxRetained = 256 << 20 })
	body := `{"input":[` + strings.Repeat(`{"role":"user","content":""},`, 30_000) + `{"role":"user","content":""}]`
	if status, answer := h.Ask(body + "}"); status != http.StatusOK {
		t.Fatalf("%d %.300s", status, answer)
	}
	if status, answer := h.Ask(body + `,"previous_response_id":"resp_alpha-1-1-1"}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %.300s", status, answer)
	}
}

func joined(messages []json.RawMessage) string {
	s := ""
	for _, m := range messages {
		s += string(m)
	}
	return s
}
