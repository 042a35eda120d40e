package upstream

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

// FuzzReadStream: every stream becomes an answer or an error.
func FuzzReadStream(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\",\"tool_calls\":[{\"index\":0,\"id\":\"1\"}]},\"token_ids\":[1],\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n")
	f.Add("data:{\"prompt_token_ids\":[1],\"usage\":null}\r\n\r\ndata: [DONE]")
	f.Add("data: {\"error\":{\"message\":\"x\",\"code\":\"y\"}}\n")
	f.Fuzz(func(t *testing.T, body string) {
		var got completion
		err := readStream(strings.NewReader(body), &got, func(d *schema.Delta) error {
			if !json.Valid(d.Delta) {
				t.Errorf("%q is no JSON", d.Delta)
			}
			return nil
		})
		if err == nil && (len(got.Choices) != 1 || !json.Valid(got.Choices[0].Message)) {
			t.Errorf("%q gave %+v", body, got)
		}
	})
}

// FuzzReadRefusal: every error response becomes a refusal with a valid status
// of a fault.
func FuzzReadRefusal(f *testing.F) {
	f.Add(`{"error":{"message":"top_p must be in (0, 1], got 1.5.","param":"top_p","code":400}}`)
	f.Add(`{"object":"error","message":"x","code":"y","type":7}`)
	f.Add(`{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"x"}]}`)
	f.Add(`1 validation error:\n  {'type': 'extra_forbidden', 'loc': 'body.seed'`)
	f.Fuzz(func(t *testing.T, body string) {
		for _, r := range []*refusal{refused(&http.Response{StatusCode: 400, Status: "400 Bad Request"}, []byte(body)), refusedInStream([]byte(body))} {
			q := request{u: &Upstream{}, params: map[string]json.RawMessage{"seed": json.RawMessage("1"), "return_token_ids": json.RawMessage("true")}}
			if schema.Validate(r.fault) != nil || r.fault.Status < 400 {
				t.Errorf("%q is %+v", body, r.fault)
			}
			if q.mend(r); len(q.u.learned.refuses()) > 0 && q.u.learned.refuses()[0] != "seed" {
				t.Errorf("%q teaches %q", body, q.u.learned.refuses())
			}
		}
	})
}
