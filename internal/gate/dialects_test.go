package gate_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/schema"
)

// TestEveryDialectHasAFixture fails for a dialect that the tests do not know.
func TestEveryDialectHasAFixture(t *testing.T) {
	all := gatetest.Fixtures()
	for i, d := range gate.Dialects() {
		if i >= len(all) || all[i].Dialect.Name() != d.Name() {
			t.Errorf("%s has none in gatetest.Fixtures", d.Name())
		}
	}
}

// TestOneModelAndOneResponse: objects that clients may look up by name.
func TestOneModelAndOneResponse(t *testing.T) {
	h := gatetest.New(t, gatetest.Chat(), &gatetest.Model{}, schema.GateOptions{}, func(c *gate.Config) { c.Dialects = gate.Dialects() })
	for _, tt := range []struct {
		method, path, header string
		status               int
		has                  string
	}{
		{"GET", "/v1/models/policy", "", 200, `"object":"model"`},
		{"GET", "/v1/models/policy", "Anthropic-Version: 2023-06-01", 200, `"type":"model"`},
		{"GET", "/v1beta/models/policy", "", 200, `"name":"models/policy"`},
		{"GET", "/v1/models/other", "", 404, `other`},
		{"GET", "/v1/responses/resp_1", "", 404, "previous_response_id"},
		{"DELETE", "/v1/responses/resp_1", "", 404, "previous_response_id"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, h.URL+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+h.Session.Key())
		if name, value, ok := strings.Cut(tt.header, ": "); ok {
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != tt.status || !strings.Contains(body.String(), tt.has) || !json.Valid(body.Bytes()) {
			t.Errorf("%s %s: %d %s, %v", tt.method, tt.path, res.StatusCode, body.String(), err)
		}
	}
}
